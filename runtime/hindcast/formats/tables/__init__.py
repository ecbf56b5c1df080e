"""Formats of tables: Parquet, Arrow, CSV and JSON, with timesteps or whole episodes as rows."""
