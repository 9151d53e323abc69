"""Exceptions that name the tensor of a list that was refused."""

from __future__ import annotations


class TensorError(Exception):
    """Raised when a tensor of a list argument is not what was expected.

    Every such exception is also a ``TypeError`` or a ``ValueError``. ``argument`` is the name of
    the list and ``index`` the index of the tensor in it.

    >>> import torch, mbf_kernels as mk
    >>> blocks = mk.MiniBlocks([torch.zeros(4), torch.zeros(6)], 2)
    >>> try:
    ...     blocks.update_([torch.zeros(4), torch.zeros(5)], beta=0.9)
    ... except mk.TensorError as error:
    ...     print(error.argument, error.index, isinstance(error, ValueError))
    grads 1 True
    """

    def __init__(self, argument: str, index: int, text: str) -> None:
        super().__init__(argument, index, text)
        self.argument = argument
        self.index = index

    def __str__(self) -> str:
        return f"{self.argument}[{self.index}]{self.args[2]}"


class TensorTypeError(TensorError, TypeError):
    """Not a tensor, or a tensor of the wrong dtype or layout."""


class TensorValueError(TensorError, ValueError):
    """A tensor of the wrong size, on the wrong device, or with memory that cannot be used."""
