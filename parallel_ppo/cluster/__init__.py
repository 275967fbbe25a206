"""Many nodes as one: who they are, how they meet, what they exchange."""
