"""A policy from what compressing does to the gradient of a model."""

from .calibration import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
