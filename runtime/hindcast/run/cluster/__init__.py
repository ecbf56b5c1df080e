"""Where `hindcast.cluster` was: operators start `python -m hindcast.run.cluster FOLDER`, see `__main__`."""
