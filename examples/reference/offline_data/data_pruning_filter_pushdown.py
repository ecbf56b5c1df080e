"""Data pruning: rows

Pages: 2.40, 2026; block 16
"""

import pyarrow.dataset

from hindcast import AlgorithmConfig, Columns

config = (
    AlgorithmConfig()
    .offline_data(
        input_read_method_kwargs={
            "filter": pyarrow.dataset.field(Columns.AGENT_ID) == "agent_1",
        },
    )
)
