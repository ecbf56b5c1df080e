"""The layout "Columns" as the writer uses it: one row per timestep, for other tools to read."""

from __future__ import annotations

from hindcast.store.spec import DataSpec
from hindcast.store.tabular.encoding import ColumnsEncoder
from hindcast.store.tabular.names import COLUMNS_LAYOUT


class ColumnsLayout:
    """A `WrittenLayout`."""

    name = COLUMNS_LAYOUT

    def encoder(self, spec: DataSpec) -> ColumnsEncoder:
        """See `WrittenLayout.encoder`."""
        return ColumnsEncoder(spec)
