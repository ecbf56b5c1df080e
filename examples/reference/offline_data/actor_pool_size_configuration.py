"""Actor pool size (PreLearner)

Pages: 2.40, 2026; block 17
"""

from hindcast import AlgorithmConfig

config = (
    AlgorithmConfig()
    .offline_data(
        map_batches_kwargs={
            "concurrency": 4,
        },
    )
)
