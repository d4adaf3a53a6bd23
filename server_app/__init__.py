"""Flower server app of FedBNN."""
