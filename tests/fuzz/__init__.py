"""Random sequences of uses of the optimizer, and random calls of the operators."""
