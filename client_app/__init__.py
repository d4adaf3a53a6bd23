"""Flower client app of FedBNN."""
