"""Shared memory: how arrays are declared, where they are, and how they are saved."""
