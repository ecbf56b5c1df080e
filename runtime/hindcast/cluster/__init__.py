"""Execution of a run on a Ray cluster that the operator created: `python -m hindcast.cluster FOLDER` is its driver."""
