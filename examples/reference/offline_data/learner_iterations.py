"""Learner iterations

Pages: 2.40, 2026; block 28
"""

from hindcast import AlgorithmConfig

config = (
    AlgorithmConfig()
    .offline_data(
        # Train on 20 batches from the substream in each learner.
        dataset_num_iters_per_learner=20,
    )
)
