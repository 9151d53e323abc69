"""What CUDA graphs do, on a CPU: torch's operations are recorded and run again on the same memory.

As in a graph, all that is not in a tensor is repeated as it was: numbers, the sizes of tensors, and
everything that Python decided.
"""

from contextlib import nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Tape(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result


class RecordedOps:
    """A recording that :meth:`replay` runs again. Results are written where they were."""

    def __init__(self, calls):
        self._calls = calls

    def replay(self):
        with torch.no_grad():
            for function, args, kwargs, recorded in self._calls:
                fresh = function(*args, **kwargs)
                for old, new in zip(tree_leaves(recorded), tree_leaves(fresh), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class OperationRecorder:
    """The recorder of GraphedSteps without a GPU.

    Unlike a capture, recording executes the operations too, so the model is put back afterwards:
    ``memory`` are the tensors that an iteration writes and that live longer.
    """

    def __init__(self, memory):
        self.memory = memory
        self.recorded = 0

    def stream(self):
        return nullcontext()

    def record(self, iteration):
        tensors = self.memory()
        before = [tensor.detach().clone() for tensor in tensors]
        try:
            with _Tape() as tape:
                result = iteration()
        finally:
            with torch.no_grad():
                for tensor, old in zip(tensors, before, strict=True):
                    tensor.copy_(old)
        self.recorded += 1
        return RecordedOps(tape.calls), result
