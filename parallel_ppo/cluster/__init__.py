"""Many nodes as one."""
