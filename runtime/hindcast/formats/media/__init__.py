"""Text, images and binary files: a class of the user's makes episodes of their rows."""
