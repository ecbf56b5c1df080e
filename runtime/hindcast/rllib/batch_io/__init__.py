"""The classes with which RLlib's page of 2019 reads and writes batches; trainings read the files as they read any."""
