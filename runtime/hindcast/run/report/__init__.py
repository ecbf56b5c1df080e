"""The HTML report of a run: curves, pictures of the data, and the page around them."""
