"""Shared memory, tasks, the worker, and the two pools that hand tasks out."""
