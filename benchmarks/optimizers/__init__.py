"""Whole optimizer steps on real parameter shapes: ``python -m benchmarks.optimizers --help``."""
