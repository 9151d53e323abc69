"""Inputs and output gradients of linear and convolution layers, for KFAC and BDF."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..stepper import UnservedError

Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]


@dataclass(eq=False)
class MatrixLayer:
    """A Linear or Conv2d layer as a matrix ``(outputs, inputs)`` with its bias as last column.

    A convolution applies its matrix to a patch of the image at every position; a linear layer has
    one position.
    """

    name: str
    module: nn.Linear | nn.Conv2d

    @property
    def params(self) -> list[nn.Parameter]:
        """The weight and, if there is one, the bias."""
        return list(self.module.parameters(recurse=False))

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(param.numel() for param in self.params)

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors in the shapes of ``params``, as one matrix."""
        weight, *bias = tensors
        return torch.cat([weight.flatten(1), *(b.unsqueeze(1) for b in bias)], dim=1)

    def joined_from(self, tensors: Mapping[Tensor, Tensor]) -> Tensor | None:
        """The matrix of tensors by parameter; None if there are none for this layer.

        Raises:
            ValueError: there is one for the weight or the bias only.
        """
        found = [tensors[param] for param in self.params if param in tensors]
        if found and len(found) < len(self.params):
            raise ValueError(f"{self.name}: expected gradients of weight and bias, got one of them")
        return self.joined(found) if found else None

    def split(self, matrix: Tensor) -> list[Tensor]:
        """A matrix in the shapes of ``params``."""
        weight = self.module.weight
        if self.module.bias is None:
            return [matrix.reshape(weight.shape)]
        return [matrix[:, :-1].reshape(weight.shape), matrix[:, -1]]

    def patches(self, inputs: Tensor) -> Tensor:
        """What the matrix is applied to, ``(samples, positions, inputs)``; 1 for the bias."""
        if isinstance(self.module, nn.Conv2d):
            found = _unfolded(self.module, inputs)
        else:
            found = inputs.unsqueeze(1)
        if self.module.bias is None:
            return found
        return functional.pad(found, (0, 1), value=1.0)

    def slopes(self, output_grads: Tensor) -> Tensor:
        """Gradients of outputs as ``(samples, positions, outputs)``."""
        if isinstance(self.module, nn.Conv2d):
            return output_grads.flatten(2).transpose(1, 2)
        return output_grads.unsqueeze(1)


def _unfolded(conv: nn.Conv2d, images: Tensor) -> Tensor:
    padding = conv.padding
    if isinstance(padding, str):
        total = [
            dilation * (size - 1) if padding == "same" else 0
            for dilation, size in zip(conv.dilation, conv.kernel_size, strict=True)
        ]
        top, left = (t // 2 for t in total)
        around = (left, total[1] - left, top, total[0] - top)
    else:
        around = (padding[1], padding[1], padding[0], padding[0])
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    padded = functional.pad(images, around, mode=mode)
    columns = functional.unfold(
        padded, conv.kernel_size, dilation=conv.dilation, stride=conv.stride
    )
    return columns.transpose(1, 2)


def matrix_layers(model: nn.Module) -> list[MatrixLayer]:
    """The linear and convolution layers of a network, in the order of its modules.

    Raises:
        ValueError: a convolution has groups, or a parameter belongs to two layers.
    """
    found = []
    seen: dict[int, str] = {}
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Linear, nn.Conv2d)):
            continue
        if isinstance(module, nn.Conv2d) and module.groups != 1:
            raise ValueError(f"{name}: expected a convolution without groups, got {module.groups}")
        for param in module.parameters():
            if id(param) in seen:
                raise ValueError(
                    f"{name}: expected parameters of its own, got those of {seen[id(param)]}"
                )
            seen[id(param)] = name
        found.append(MatrixLayer(name, module))
    return found


def check_served(
    method: str,
    model: nn.Module,
    layers: list[MatrixLayer],
    others: tuple[type[nn.Module], ...] = (),
) -> None:
    """Refuses a network with parameters outside of ``layers`` and modules of ``others``."""
    served = {id(layer.module) for layer in layers}
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if own and id(module) not in served and not isinstance(module, others):
            wanted = "Linear, Conv2d and norm layers" if others else "Linear and Conv2d layers"
            raise UnservedError(
                f"{method}: expected parameters in {wanted}, got some in "
                f"{type(module).__name__} {name!r}"
            )


@dataclass
class LayerTape:
    """Records the inputs and outputs of layers during a forward pass."""

    layers: list[MatrixLayer]
    _inputs: dict[MatrixLayer, Tensor] = field(default_factory=dict)
    _outputs: dict[MatrixLayer, Tensor] = field(default_factory=dict)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records the one forward pass made inside."""
        self.clear()
        handles = [layer.module.register_forward_hook(self._hook(layer)) for layer in self.layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(
        self, layer: MatrixLayer
    ) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        wanted = 4 if isinstance(layer.module, nn.Conv2d) else 2

        def record(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if layer in self._inputs:
                raise ValueError(f"{layer.name}: expected one call per pass, got two")
            if inputs[0].dim() != wanted:
                raise ValueError(
                    f"{layer.name}: expected inputs of {wanted} dimensions, got "
                    f"{tuple(inputs[0].shape)}"
                )
            self._inputs[layer] = inputs[0].detach()
            self._outputs[layer] = output
            # The network goes on with a copy, since it may overwrite what it gets.
            return output.clone()

        return record

    def patches_and_slopes(
        self, loss: Tensor, *, retain_graph: bool
    ) -> Iterator[tuple[MatrixLayer, Tensor, Tensor]]:
        """For each layer its patches, and the slopes of every sample's own loss.

        Args:
            loss: the mean loss over the samples of the recorded pass.
        """
        layers = [layer for layer in self.layers if layer in self._outputs]
        grads = torch.autograd.grad(
            loss, [self._outputs[layer] for layer in layers], retain_graph=retain_graph
        )
        for layer, grad in zip(layers, grads, strict=True):
            slopes = layer.slopes(grad) * len(grad)
            yield layer, layer.patches(self._inputs[layer]), slopes

    def clear(self) -> None:
        """Frees the recorded tensors."""
        self._inputs.clear()
        self._outputs.clear()
