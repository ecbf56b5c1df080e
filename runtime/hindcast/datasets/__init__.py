"""Datasets: opened, made of other data, looked at, converted."""
