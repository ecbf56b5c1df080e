"""Training from recorded or live experience, iteration by iteration, and the training of experts."""
