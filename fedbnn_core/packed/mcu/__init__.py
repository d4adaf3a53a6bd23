"""Packed networks as C for microcontrollers: no heap, no threads, no files."""
