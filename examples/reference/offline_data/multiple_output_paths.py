"""Using cloud storage for recording: several outputs

Pages: 2.40, 2026; block 14
Refused: expected one path: a recording writes to one folder
"""

from hindcast import AlgorithmConfig

config= (
    AlgorithmConfig()
    .offline_data(
        # changed: a bucket instead of <your-bucket>.
        output=["gs://your-bucket/dir1", "gs://your-bucket/dir2"],
    )
)
