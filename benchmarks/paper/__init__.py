"""The experiments of the MBF paper: ``python -m benchmarks.paper --help``."""
