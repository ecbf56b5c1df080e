"""Batch prefetching

Pages: 2.40, 2026; block 27
"""

from hindcast import AlgorithmConfig

config = (
    AlgorithmConfig()
    .offline_data(
        iter_batches_kwargs={
            "prefetch_batches": 2,
        }
    )
)
