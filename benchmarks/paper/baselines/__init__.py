"""The methods that the paper compares MBF with."""
