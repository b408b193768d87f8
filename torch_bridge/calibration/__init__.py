"""A policy from what compressing does to the gradient of a model."""

from .calibration import calibrate

__all__ = ["calibrate"]
