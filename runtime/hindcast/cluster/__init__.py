"""A run on a Ray cluster that the operator made: `python -m hindcast.cluster FOLDER` is its driver."""
