"""Federated training of 1-bit neural networks: everything that is not Flower."""

__version__ = "0.1.0"

__all__ = ["__version__"]
