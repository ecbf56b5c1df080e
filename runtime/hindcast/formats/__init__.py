"""File formats: the layouts that Hindcast writes and opens, and the foreign formats that it reads."""
