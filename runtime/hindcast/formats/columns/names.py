"""The names of columns in the layout "Columns": RLlib's, and `t`."""

from __future__ import annotations

from typing import Final

from hindcast.episodes.columns import Columns

COLUMNS_LAYOUT: Final = "columns"
# Of older recordings, where one flag says that an episode is over.
DONES: Final = ("dones", "done")
# What pandas writes of an index without a name, to Parquet and to CSV, and reads from the latter.
_INDICES: Final = (*(f"__index_level_{level}__" for level in range(4)), "", "Unnamed: 0")
# Columns of RLlib's files that are not model outputs.
NO_OUTPUTS: Final = frozenset(
    {
        Columns.EPS_ID,
        Columns.AGENT_ID,
        Columns.MODULE_ID,
        Columns.T,
        Columns.OBS,
        Columns.ACTIONS,
        Columns.REWARDS,
        Columns.NEXT_OBS,
        Columns.TERMINATEDS,
        Columns.TRUNCATEDS,
        Columns.INFOS,
        *DONES,
        *_INDICES,
        "agent_index",
        "unroll_id",
        "type",
    }
)
