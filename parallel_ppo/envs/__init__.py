"""Environments behind one contract: a slice is stepped as one batch (see `contract.py`)."""
