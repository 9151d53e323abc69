"""The paper's experiments, one module each.

A module has ``command``, a click command; ``SMOKE``, the arguments of its tiny runs on digits;
and ``REDUCED``, the arguments of its runs on two cores. Both are tuples of tuples of
words. They name neither ``--output`` nor ``--device`` nor ``--folder``, which the caller adds, and
``REDUCED`` names no budgets, so that ``--full`` can be added. Where the whole set of the paper has
other runs, they are in ``FULL``.
"""
