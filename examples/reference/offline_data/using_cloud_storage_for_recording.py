"""Using cloud storage for recording

Pages: 2.40, 2026; block 13
"""

from hindcast import AlgorithmConfig

config= (
    AlgorithmConfig()
    .offline_data(
        # changed: a bucket instead of <your-bucket>.
        output="gs://your-bucket/dir1",
    )
)
