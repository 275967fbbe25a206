"""Files that are never half-written, the user's key, the run directory."""
