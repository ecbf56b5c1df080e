"""Using cloud storage: file system of PyArrow

Pages: 2.40, 2026; block 12
"""

from datetime import timedelta

import pyarrow.fs

from hindcast import AlgorithmConfig

# Define the PyArrow filesystem
# changed: PyArrow spells it GcsFileSystem.
gcs = pyarrow.fs.GcsFileSystem(
    # This is needed to resolve the hostname for public buckets.
    anonymous=True,
    retry_time_limit=timedelta(seconds=15)
)

# Define the configuration.
config= (
    AlgorithmConfig()
    .offline_data(
        # NOTE: Use a relative file path now
        # changed: a bucket instead of <public-bucket>.
        input_="public-bucket/dir1",
        input_filesystem=gcs,
    )
)
