"""The layout "Episodes / Arrow": arrays as binary cells of Parquet files."""
