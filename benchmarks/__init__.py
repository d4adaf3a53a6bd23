"""Measurements of speed and memory; each module has a `main`."""
