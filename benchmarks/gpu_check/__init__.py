"""What only a GPU can show, by one command and in one file: ``python -m benchmarks.gpu_check``."""
