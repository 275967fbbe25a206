"""All settings, from YAML and flags, and the kinds of environments."""
