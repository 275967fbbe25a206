"""Policies loaded, played, filmed and scored outside their run."""
