"""Readers of published image sets."""
