"""Data pruning: columns

Pages: 2.40, 2026; block 15
"""

from hindcast import AlgorithmConfig, Columns

config = (
    AlgorithmConfig()
    # changed: the page writes `offline_Data`, which no config has.
    .offline_data(
        input_read_method_kwargs={
            "columns": [
                Columns.EPS_ID,
                Columns.AGENT_ID,
                Columns.OBS,
                Columns.NEXT_OBS,
                Columns.REWARDS,
                Columns.ACTIONS,
                Columns.TERMINATED,
                Columns.TRUNCATED,
            ],
        },
    )
)
