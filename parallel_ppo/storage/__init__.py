"""Atomic files, the user's key, the run directory."""
