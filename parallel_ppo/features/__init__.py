"""The state of a run besides its parameters: each feature declares its arrays and computes with them."""
