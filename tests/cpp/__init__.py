"""The C++ sources of csrc, tested without Python."""
