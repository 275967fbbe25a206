"""What a run remembers beside its parameters: each feature declares its arrays and computes with them."""
