"""The layout "Columns", with one row per timestep; and conversion between table cells and arrays."""
