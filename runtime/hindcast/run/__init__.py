"""Execution of resources: recordings, trainings, their reports and their output."""
