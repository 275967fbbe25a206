"""Resources, placement, processes and signals."""
