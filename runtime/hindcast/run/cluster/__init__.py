"""A run on a Ray cluster that the operator made: `python -m hindcast.run.cluster FOLDER` is its driver."""
