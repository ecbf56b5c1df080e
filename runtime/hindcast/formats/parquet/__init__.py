"""Opening, writing and describing Parquet files of any layout."""
