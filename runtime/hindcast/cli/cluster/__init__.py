"""Reads a cluster for the commands."""
