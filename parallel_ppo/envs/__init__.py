"""Environments behind one contract (`contract.py`): a slice is stepped as one batch."""
