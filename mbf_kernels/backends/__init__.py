"""The implementations of the four operations, one module or package each.

=============  ==================================================================================
``backend``    what every backend provides
``registry``   which there are, which one serves a call, and how to choose another
``compiled``   the operators of the extension: backends ``cpu`` and ``cuda``
``triton``     Triton kernels for NVIDIA and AMD GPUs: backend ``triton``
``reference``  plain batched torch on any device: backend ``torch``
``large``      blocks beyond the small-block kernels: LAPACK, threaded over the batch
=============  ==================================================================================

A new backend is a module with a subclass of :class:`.backend.Backend` and one line in
``registry.py``. All backends keep the same state, so one can change between them at any time.
"""
