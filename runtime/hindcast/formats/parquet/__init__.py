"""Parquet files, whatever their layout: opened, written, described."""
