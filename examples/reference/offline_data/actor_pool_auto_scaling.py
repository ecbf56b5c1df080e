"""Actor pool size (PreLearner): auto-scaling

Pages: 2.40, 2026; block 18
"""

from hindcast import AlgorithmConfig

config = (
    AlgorithmConfig()
    .offline_data(
        map_batches_kwargs={
            "concurrency": (4, 8),
        },
    )
)
