"""A run on disk, for whoever reads it."""
