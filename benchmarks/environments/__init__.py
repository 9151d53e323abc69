"""Builds the packages and tries them in fresh virtual environments."""
