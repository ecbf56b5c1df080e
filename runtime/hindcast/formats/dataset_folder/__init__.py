"""What a dataset's folder says of itself: manifest and commits."""
