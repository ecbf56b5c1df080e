"""Using cloud storage

Pages: 2.40, 2026; block 11
"""

from hindcast import AlgorithmConfig

config=(
    AlgorithmConfig()
    .offline_data(
        # changed: a bucket instead of <your-bucket>.
        input_="gs://your-bucket/dir1",
    )
)
