"""Which parameters belong together, and what kind of blocks they are cut into.

A module shows which bias belongs to which weight, which layers normalise, and which convolutions
are grouped or transposed. Names show most of this. Of bare tensors only the shapes are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

CONV_KINDS = ("kernel", "average", "filter")
FC_KINDS = ("average", "row")

# Layers whose parameters take Adam's direction. _NormBase covers all batch and instance norms.
ADAM_MODULES = (
    _NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
    nn.Embedding,
    nn.EmbeddingBag,
)


@dataclass(frozen=True)
class Layer:
    """A weight with its joined bias, or a single parameter.

    ``family`` says what the weight is: ``conv`` or ``linear``, for which the options choose the
    kind of blocks, or ``diagonal`` or ``adam``, which are kinds themselves.
    """

    name: str
    family: str
    weight: Tensor
    bias: Tensor | None = None
    groups: int = 1
    transposed: bool = False

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    @property
    def kernel_volume(self) -> int:
        """Elements of one kernel of a convolution weight."""
        return self.weight[0, 0].numel()

    def kind(self, conv: str, fc: str) -> str:
        return {"conv": conv, "linear": fc}.get(self.family, self.family)


def layer_by_shape(name: str, tensor: Tensor) -> Layer:
    """The layer of a tensor of which only the shape is known."""
    if tensor.numel() <= 1 or tensor.dim() == 0:
        return Layer(name, "adam", tensor)
    if tensor.dim() == 1:
        return Layer(name, "diagonal", tensor)
    return Layer(name, "linear" if tensor.dim() == 2 else "conv", tensor)


def layers_of_tensors(tensors: Iterable[Tensor], first: int = 0) -> list[Layer]:
    """One layer per tensor: no bias is joined, and norm layers look like any other vector."""
    return [layer_by_shape(f"parameter {first + i}", tensor) for i, tensor in enumerate(tensors)]


# --- names ------------------------------------------------------------------------------------


def _joined_bias(local: str) -> str | None:
    """What the bias that belongs to a weight of this name would be called."""
    if local == "weight":
        return "bias"
    if local == "in_proj_weight":
        return "in_proj_bias"
    for start in ("weight_ih", "weight_hh"):
        if local.startswith(start):
            return local.replace("weight", "bias", 1)
    return None


def layers_of_names(named: Sequence[tuple[str, Tensor]]) -> list[Layer]:
    """Tells joined biases, norm layers and embeddings by the names that torch's modules use.

    A vector called ``weight`` belongs to a norm layer, and so does the bias of the same module; a
    matrix with ``emb`` in its name is an embedding. Grouped and transposed convolutions look like
    ordinary ones.
    """
    by_name = dict(named)
    bias_of = {name: _bias_beside(name, tensor, by_name) for name, tensor in named}
    weight_of = {bias: name for name, bias in bias_of.items() if bias is not None}
    layers = []
    for name, tensor in named:
        if name in weight_of:
            if by_name[weight_of[name]].dim() == 1:  # of a norm layer; other biases are joined
                layers.append(Layer(name, "adam", tensor))
        elif _is_norm_weight(name, tensor) or _is_embedding(name, tensor):
            layers.append(Layer(name, "adam", tensor))
        else:
            bias = bias_of[name]
            layer = layer_by_shape(name, tensor)
            layers.append(layer if bias is None else replace(layer, bias=by_name[bias]))
    return layers


def _is_norm_weight(name: str, tensor: Tensor) -> bool:
    return name.rpartition(".")[2] == "weight" and tensor.dim() == 1


def _is_embedding(name: str, tensor: Tensor) -> bool:
    return tensor.dim() == 2 and "emb" in name.lower()


def _bias_beside(name: str, tensor: Tensor, by_name: dict[str, Tensor]) -> str | None:
    """The name of the bias of a matrix, or of a norm layer's weight, if there is one."""
    prefix, dot, local = name.rpartition(".")
    joined = _joined_bias(local)
    takes_one = _is_norm_weight(name, tensor) or (
        tensor.dim() == 2 and not _is_embedding(name, tensor)
    )
    if joined is None or not takes_one:
        return None
    bias = by_name.get(prefix + dot + joined)
    # One element per row. A matrix stored as (in, out) has one per column: it is no joined bias.
    return prefix + dot + joined if bias is not None and bias.shape == tensor.shape[:1] else None


# --- modules ----------------------------------------------------------------------------------


def _linear_weights(module: nn.Module, own: dict[str, Tensor]) -> list[tuple[str, str | None]]:
    """(weight, joined bias) of the matrices that a module multiplies with as a Linear does."""
    if isinstance(module, nn.Linear):
        pairs = [("weight", "bias")]
    elif isinstance(module, nn.MultiheadAttention):
        pairs = [("in_proj_weight", "in_proj_bias")]
        pairs += [(f"{x}_proj_weight", "") for x in "qkv"]
    elif isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        pairs = [(w, _joined_bias(w) or "") for w in own if w.startswith("weight_")]
    else:
        return []
    return [(w, b if b in own else None) for w, b in pairs if w in own]


def _layers_of_one(prefix: str, module: nn.Module, own: dict[str, Tensor]) -> Iterator[Layer]:
    """The layers of a module's own parameters, without those of its submodules."""
    rest = dict(own)
    if isinstance(module, ADAM_MODULES):
        for local in list(rest):
            yield Layer(prefix + local, "adam", rest.pop(local))
    if isinstance(module, _ConvNd):
        weight, bias = rest.pop("weight", None), rest.pop("bias", None)
        if weight is not None:
            transposed = isinstance(module, _ConvTransposeNd)
            yield Layer(
                f"{prefix}weight", "conv", weight, groups=module.groups, transposed=transposed
            )
        if bias is not None:
            yield Layer(f"{prefix}bias", "diagonal", bias)
    if isinstance(module, nn.MultiheadAttention):
        for local in ("bias_k", "bias_v"):
            if local in rest:
                yield Layer(prefix + local, "adam", rest.pop(local))
    for weight_name, bias_name in _linear_weights(module, rest):
        bias = rest.pop(bias_name) if bias_name else None
        yield Layer(prefix + weight_name, "linear", rest.pop(weight_name), bias)
    for local, tensor in rest.items():
        yield layer_by_shape(prefix + local, tensor)


def layers_of_module(module: nn.Module) -> list[Layer]:
    """The layers of a module; a tied parameter belongs to the first that holds it."""
    seen: set[int] = set()
    layers: list[Layer] = []
    for prefix, submodule in module.named_modules():
        own = {}
        for local, tensor in submodule.named_parameters(recurse=False):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                own[local] = tensor
        layers += _layers_of_one(f"{prefix}." if prefix else "", submodule, own)
    return layers
