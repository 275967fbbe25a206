"""What this process may use of its machine, where processes go, and signals."""
