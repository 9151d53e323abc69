"""The implementations of the four operations, one module or package for each.

=============  ==================================================================================
``backend``    what every backend provides
``registry``   the list of backends, and which of them serves a call
``compiled``   the operators of the extension: backends ``cpu`` and ``cuda``
``triton``     Triton kernels for NVIDIA and AMD GPUs: backend ``triton``
``reference``  plain batched torch on any device: backend ``torch``
``large``      blocks too large for the kernels: LAPACK, threaded over the batch
=============  ==================================================================================

A new backend is a module with a subclass of :class:`.backend.Backend` and one line in
``registry.py``. All backends use the same state, so a state can change backends at any time.
"""
