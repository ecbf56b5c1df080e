"""Scaling I/O throughput: learners

Pages: 2.40, 2026; block 10
"""

from hindcast import AlgorithmConfig

config = (
    AlgorithmConfig()
    .learners(
        num_learners=4,
        num_gpus_per_learner=1,
    )
)
