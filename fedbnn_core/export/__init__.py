"""A torch network to a packed graph."""
