"""Single kernels against batched torch and other peers: ``python -m benchmarks.micro --help``."""
