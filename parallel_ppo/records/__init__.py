"""Measurements, and where they are written and shown."""
