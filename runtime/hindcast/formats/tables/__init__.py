"""Formats of tables: Parquet, CSV and JSON, with timesteps or whole episodes as rows."""
