"""How accurate the kernels are, and where they report failure."""
