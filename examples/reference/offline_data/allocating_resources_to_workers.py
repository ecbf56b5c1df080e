"""Allocated resources (PreLearner)

Pages: 2.40, 2026; block 19
"""

from hindcast import AlgorithmConfig

config = (
    AlgorithmConfig()
    .offline_data(
        map_batches_kwargs={
            "concurrency": 4,
            "num_cpus": 2,
        },
    )
)
