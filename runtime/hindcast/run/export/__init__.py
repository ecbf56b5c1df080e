"""Export of a trained policy."""
