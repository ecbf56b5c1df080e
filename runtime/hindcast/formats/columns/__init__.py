"""The layout "Columns", one row per timestep; and cells of tables as arrays."""
