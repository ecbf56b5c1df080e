"""Manifest, index, commits and owner of a dataset's folder."""
