"""Training on real images, MBF against Adam and SGD: ``python -m benchmarks.training --help``."""
