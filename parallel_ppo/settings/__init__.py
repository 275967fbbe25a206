"""What can be set, from YAML and flags; names of environments."""
