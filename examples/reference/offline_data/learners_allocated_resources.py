"""Allocated resources (Learner)

Pages: 2.40; block 24
"""

from hindcast import AlgorithmConfig

config = (
    AlgorithmConfig()
    .learners(num_learners=4, num_gpus_per_learner=2)
)
