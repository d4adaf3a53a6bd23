"""Start Flower for a run, follow it, and leave nothing behind."""

from fedbnn_core.flower.simulation import SimulationResult, run_simulation

__all__ = ["SimulationResult", "run_simulation"]
