"""Batch size

Pages: 2.40; block 26
"""

from hindcast import AlgorithmConfig

config = (
    AlgorithmConfig()
    .training(
        train_batch_size_per_learner=1024,
    )
)
