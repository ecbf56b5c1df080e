"""Carries out resources: recording, training, what they report and what they leave behind."""

from hindcast.run.carry_out import carry_out
from hindcast.run.planning import plan

__all__ = ["carry_out", "plan"]
