"""The networks of the paper, each as 1-bit net and as float twin."""

from fedbnn_core.networks.registry import MODELS, ModelSpec, build_model

__all__ = ["MODELS", "ModelSpec", "build_model"]
