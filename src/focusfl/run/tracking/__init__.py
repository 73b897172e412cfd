"""Tracking: callbacks that write a run to TensorBoard, MLflow or Weights & Biases."""

from focusfl.run.tracking.trackers import TRACKERS, MLflow, TensorBoard, Tracker, WandB, check_tools, for_experiment

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "Tracker", "WandB", "check_tools", "for_experiment"]
