"""From settings to a finished run: planning, the loop, the update, checkpoints."""
