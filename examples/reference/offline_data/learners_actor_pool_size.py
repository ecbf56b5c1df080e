"""Actor pool size (Learner)

Pages: 2.40; block 23
"""

from hindcast import AlgorithmConfig

config = (
    AlgorithmConfig()
    .learners(num_learners=4)
)
