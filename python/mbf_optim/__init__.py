"""The Mini-Block Fisher optimizer on top of :mod:`mbf_kernels`.

This release holds the kernels only; the optimizer itself is not part of it yet.
"""
