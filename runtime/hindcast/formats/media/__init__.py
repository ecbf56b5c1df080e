"""Text, images and binary files: their rows become episodes by a class of the user's."""
