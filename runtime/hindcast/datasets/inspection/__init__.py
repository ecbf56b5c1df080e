"""What is in data, and what is wrong with them."""
