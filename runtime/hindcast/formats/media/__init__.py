"""Text, images, binary files, TFRecord and Ray Data; a class of the user may convert their rows to episodes."""
