"""The data of the paper's experiments."""
