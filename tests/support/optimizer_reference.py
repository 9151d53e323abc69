"""The optimizer MBF in float64 numpy: plain, slow, and without any code of the fast one.

A *layer* is a weight with its joined bias, or a single parameter. Its elements are numbered in
one flat vector (the weight in logical order, then the bias) and cut into *blocks*: a block is a
set of r rows of d elements that share one d x d matrix. A layer counts its own steps, those in
which all of it had a gradient: k = 1, 2, ... D is the gradient (negated to maximize), C the
curvature gradient if one is given for the layer and D otherwise, t the number of statistics
updates.

Block layers, with T1 = stats_every, T2 = inverse_every, mu = momentum, eta = lr, gamma =
weight_decay:

    M <- mu M + D                                                  every step
    G <- beta G + (1 - beta)/r * sum over the r rows of C C^T      at statistics steps
    v <- beta v + (1 - beta) C*C                                   at statistics steps
    n <- || clip(N_hat / (sqrt(v_hat) + 1e-8), -1, 1) ||           at statistics steps
    P <- (G_hat + lambda I)^power                                  at refresh steps
    W <- W - eta (P N + gamma W)                                   every step, without graft
    W <- W - eta (n P N / ||P N|| + gamma W)                       every step, graft="adam"

    N = M, or mu M + D with nesterov, the default with graft

    statistics step: k = 1, k % T1 = 0, or early and 2 <= k <= T1
    refresh step:    k = 1, k % T2 = 0, or early and k a power of two below T2
    early:           early_refresh, and the layer was not warm started
    G_hat = G / (1 - beta^t), v_hat = v / (1 - beta^t); after a warm start G and v themselves
    M_hat = (1 - mu) / (1 - mu^k) M; N_hat = M_hat, or (1 - mu) / (1 - mu^(k + 1)) N
    lambda = damping ("absolute") or max(damping * mean of all diagonals of G_hat, 1e-30) ("layer")

    power = -1; by default -1/2 with graft in linear layers whose rows share matrices

The norms and the mean run over the whole layer. For blocks of one row v is the diagonal of G.
P is the identity until the first refresh; a block that cannot be factored keeps its last P.

Elementwise layers (kind `adam`; kind `diagonal` with graft):

    M <- mu M + D,  v <- beta v + (1 - beta) D*D                   every step
    W <- W - eta (M / (sqrt(v / (1 - beta^k)) + 1e-8) + gamma W)   M_hat for M with graft

A warm start sets G and v of the block layers to the mean over the batches of what the updates
above would add without the factor 1 - beta, and P from it.
"""

import math

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from tests.support.shared_reference import piece_width

EPSILON = 1e-8
SMALLEST_RELATIVE_DAMPING = 1e-30
ADAM_MODULES = (
    _NormBase,  # every BatchNorm and InstanceNorm
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
    nn.Embedding,
    nn.EmbeddingBag,
)
CHANGEABLE = (
    "lr",
    "momentum",
    "beta",
    "damping",
    "weight_decay",
    "stats_every",
    "inverse_every",
    "early_refresh",
    "maximize",
)


def linear_weights(module, own):
    """The names of the parameters in `own` that `module` uses like the weight of a Linear."""
    if isinstance(module, nn.Linear):
        names = ["weight"]
    elif isinstance(module, nn.MultiheadAttention):
        names = ["in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"]
    elif isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        names = [name for name in own if name.startswith("weight_")]
    else:
        names = []
    return [name for name in names if name in own]


def kind_of_other(parameter):
    """The kind of a parameter that belongs to no known type of module."""
    if parameter.numel() <= 1:
        return "adam"
    return {1: "diagonal", 2: "linear"}.get(parameter.ndim, "conv")


def sort_parameters(module, own):
    """The layers of one module as (names, kind); `own` are its parameters by local name."""
    if isinstance(module, ADAM_MODULES):
        return [([name], "adam") for name in own]
    layers = []
    left = dict(own)
    for weight in linear_weights(module, own):
        # in_proj_bias goes with in_proj_weight, bias_ih_l0 with weight_ih_l0, bias with weight;
        # the q, k, v and hr projections have no bias of that name.
        bias = weight.replace("weight", "bias", 1)
        names = [weight, bias] if bias in own else [weight]
        layers.append((names, "linear"))
        for name in names:
            del left[name]
    for name, parameter in left.items():
        if isinstance(module, _ConvNd) and name in ("weight", "bias"):
            kind = "conv" if name == "weight" else "diagonal"
        elif isinstance(module, nn.MultiheadAttention) and name in ("bias_k", "bias_v"):
            kind = "adam"
        else:
            kind = kind_of_other(parameter)
        layers.append(([name], kind))
    return layers


def pieces(count, most):
    """Equal slices of range(count), each of at most `most` (the last one may be shorter)."""
    if most is None:
        return [slice(0, count)]
    width = math.ceil(count / math.ceil(count / most))
    return [slice(start, start + width) for start in range(0, count, width)]


def conv_blocks(shape, conv, groups, transposed, max_block):
    """Element indices (blocks, rows, d) of a convolution's blocks, one array per piece."""
    volume = math.prod(shape[2:])
    indices = np.arange(math.prod(shape))
    if conv == "kernel":
        return [indices.reshape(-1, 1, volume)]
    if conv == "average":
        return [indices.reshape(1, -1, volume)]
    indices = indices.reshape(groups, shape[0] // groups, shape[1], volume)
    if transposed:  # (group, input, output, kernel) -> (group, output, input, kernel)
        indices = indices.swapaxes(1, 2)
    rows, channels = indices.shape[1:3]
    most = None if max_block is None else max(1, max_block // volume)
    return [indices[:, :, piece].reshape(groups, rows, -1) for piece in pieces(channels, most)]


def linear_blocks(shape, has_bias, fc, max_block):
    """Element indices (blocks, rows, d) of a Linear's blocks, one array per piece."""
    outputs, inputs = shape
    indices = np.arange(outputs * inputs).reshape(outputs, inputs)
    if has_bias:
        indices = np.column_stack([indices, outputs * inputs + np.arange(outputs)])
    indices = indices[:, None, :] if fc == "row" else indices[None, :, :]
    columns = indices.shape[2]
    if max_block is None or columns <= max_block:
        return [indices]
    width = piece_width(inputs, has_bias, 1, max_block)
    return [indices[:, :, start : start + width] for start in range(0, columns, width)]


def outer_products(rows):
    """The mean over the rows of their outer products: (blocks, r, d) -> (blocks, d, d)."""
    return rows.swapaxes(1, 2) @ rows / rows.shape[1]


def damped_inverses(G, damping, last):
    """(G + damping I)^-1 of each block, or its `last` inverse if the new one cannot be computed."""
    A = G + damping * np.eye(G.shape[-1])
    good = np.isfinite(A).all(axis=(1, 2))
    if not good.all():
        P = last.copy()
        if good.any():
            P[good] = damped_inverses(G[good], damping, last[good])
        return P
    try:
        inverse_factor = np.linalg.inv(np.linalg.cholesky(A))
    except np.linalg.LinAlgError:
        if len(G) == 1:
            return last
        singles = zip(G[:, None], last[:, None], strict=True)
        return np.concatenate([damped_inverses(g, damping, p) for g, p in singles])
    P = inverse_factor.swapaxes(1, 2) @ inverse_factor
    return np.where(np.isfinite(P).all(axis=(1, 2), keepdims=True), P, last)


def damped_powers(G, damping, power, last):
    """(G + damping I)^power of each block, or its `last` one if that cannot be computed."""
    if power == -1.0:
        return damped_inverses(G, damping, last)
    P = last.copy()
    for i, g in enumerate(G):
        A = g + damping * np.eye(len(g))
        if not np.isfinite(A).all():
            continue
        values, vectors = np.linalg.eigh(A)
        if values.min() > 0.0:
            P[i] = vectors @ np.diag(values**power) @ vectors.T
    return P


class Layer:
    """The state of one layer; `blocks` is None for an elementwise layer."""

    def __init__(self, names, shapes, kind, blocks, power):
        self.names = names
        self.shapes = shapes
        self.kind = kind
        self.blocks = blocks
        self.power = power
        size = sum(math.prod(shape) for shape in shapes)
        self.M = np.zeros(size)
        self.v = np.zeros(size)
        self.steps = 0
        self.updates = 0
        self.warm = False
        self.target_norm = 0.0
        if blocks is not None:
            self.G = [np.zeros((len(b), b.shape[2], b.shape[2])) for b in blocks]
            self.P = [np.tile(np.eye(b.shape[2]), (len(b), 1, 1)) for b in blocks]

    def joined(self, arrays):
        """The layer's flat vector, from arrays by parameter name; None if one is missing."""
        own = [arrays.get(name) for name in self.names]
        if any(array is None for array in own):
            return None
        for name, array, shape in zip(self.names, own, self.shapes, strict=True):
            if np.shape(array) != shape:
                raise ValueError(f"{name}: shape {np.shape(array)} instead of {shape}")
        return np.concatenate([np.asarray(array, dtype=np.float64).ravel() for array in own])


class Float64MBF:
    """MBF on `params`, float64 copies of a torch model's parameters by name."""

    def __init__(
        self,
        model,
        *,
        lr,
        momentum=0.9,
        beta=0.9,
        damping=None,
        weight_decay=0.0,
        stats_every=10,
        inverse_every=100,
        conv=None,
        fc="average",
        max_block="auto",
        power=None,
        early_refresh=True,
        graft=None,
        nesterov=None,
        damping_scale=None,
        maximize=False,
    ):
        if conv is None:
            conv = "filter" if graft else "kernel"
        if conv not in ("kernel", "average", "filter") or fc not in ("average", "row"):
            raise ValueError(f"conv={conv!r}, fc={fc!r}")
        if graft not in (None, "adam") or damping_scale not in (None, "absolute", "layer"):
            raise ValueError(f"graft={graft!r}, damping_scale={damping_scale!r}")
        self.lr = lr
        self.momentum = momentum
        self.beta = beta
        self.weight_decay = weight_decay
        self.stats_every = stats_every
        self.inverse_every = inverse_every
        self.conv = conv
        self.fc = fc
        self.max_block = max_block
        self.early_refresh = early_refresh
        self.graft = graft
        self.nesterov = graft is not None if nesterov is None else nesterov
        self.maximize = maximize
        self.power = power
        self.damping = damping
        self.damping_scale = damping_scale or ("layer" if graft else "absolute")
        self.params = {
            name: np.array(parameter.detach().cpu().double().numpy(), order="C")
            for name, parameter in model.named_parameters()
        }
        self.layers = {}
        taken = set()
        for prefix, module in model.named_modules():
            own = {
                name: parameter
                for name, parameter in module.named_parameters(recurse=False)
                if id(parameter) not in taken
            }
            taken.update(id(parameter) for parameter in own.values())
            for names, kind in sort_parameters(module, own):
                full_names = [f"{prefix}.{name}" if prefix else name for name in names]
                self.layers[full_names[0]] = self._new_layer(module, full_names, kind)

    def _new_layer(self, module, names, kind):
        """A new layer of the parameters `names`; the first one is the weight."""
        shapes = [self.params[name].shape for name in names]
        if kind == "adam" or (kind == "diagonal" and self.graft):
            blocks = None
        elif kind == "diagonal":
            blocks = [np.arange(shapes[0][0]).reshape(-1, 1, 1)]
        elif kind == "linear":
            blocks = linear_blocks(shapes[0], len(names) == 2, self.fc, self._most_columns())
        else:
            known = isinstance(module, _ConvNd)
            groups = module.groups if known else 1
            transposed = module.transposed if known else False
            blocks = conv_blocks(shapes[0], self.conv, groups, transposed, self._most_columns())
        power = -1.0
        if kind in ("linear", "conv") and self.power is not None:
            power = self.power
        elif kind == "linear" and self.fc == "average" and self.graft:
            power = -0.5
        return Layer(names, shapes, kind, blocks, power)

    def _most_columns(self):
        """Those of a piece; None for whole rows."""
        if self.max_block != "auto":
            return self.max_block
        return 128 if self.graft else None

    @np.errstate(invalid="ignore", over="ignore")
    def step(self, grads, curvature=None, **changed_hyperparameters):
        """One step. Hyper-parameters given here apply from this step on."""
        for name, value in changed_hyperparameters.items():
            if name not in CHANGEABLE:
                raise TypeError(f"{name} cannot change")
            setattr(self, name, value)
        curvature = curvature or {}
        self._check_names(grads)
        self._check_names(curvature)
        for layer in self.layers.values():
            D = layer.joined(grads)
            if D is None:
                continue
            if self.maximize:
                D = -D
            C = layer.joined(curvature)
            layer.steps += 1
            layer.M = self.momentum * layer.M + D
            if layer.blocks is None:
                direction = self._elementwise_direction(layer, D)
            else:
                N = self.momentum * layer.M + D if self.nesterov else layer.M
                direction = self._block_direction(layer, N, D if C is None else C)
            self._move(layer, direction)

    @np.errstate(invalid="ignore", over="ignore")
    def warm_start(self, batches_of_grads):
        """Statistics and inverses from the gradients of several batches, before step 1."""
        batches = list(batches_of_grads)
        for batch in batches:
            self._check_names(batch)
        for layer in self.layers.values():
            gradients = [layer.joined(batch) for batch in batches]
            gradients = [C for C in gradients if C is not None]
            if not gradients:
                continue
            layer.v = sum(C * C for C in gradients) / len(gradients)
            layer.warm = True
            if layer.blocks is None:
                continue
            layer.G = [
                sum(outer_products(C[block]) for C in gradients) / len(gradients)
                for block in layer.blocks
            ]
            self._refresh(layer)

    def stats(self, name):
        """The matrices G of a weight's blocks (not bias corrected).

        Kernels come in the order of the weight. Rows (or groups) come in order, and the pieces of
        a row follow each other. An elementwise layer has no matrices.
        """
        return self._matrices(name, "G")

    def inverse(self, name):
        """The matrices P of a weight's blocks, in the order of `stats`."""
        return self._matrices(name, "P")

    def _matrices(self, name, which):
        """Copies of a layer's matrices, block by block and within a block piece by piece."""
        layer = self.layers[name]
        if layer.blocks is None:
            return []
        by_piece = getattr(layer, which)
        return [matrix.copy() for block in zip(*by_piece, strict=True) for matrix in block]

    def _check_names(self, arrays):
        """Raises for names that are no parameters, which would be ignored silently."""
        unknown = set(arrays) - set(self.params)
        if unknown:
            raise KeyError(f"no such parameters: {sorted(unknown)}")

    def _is_early(self, layer):
        """Whether the extra steps of the early schedule apply to this layer."""
        return self.early_refresh and not layer.warm

    def _is_statistics_step(self, layer):
        """Whether G and v are updated in the layer's current step."""
        k = layer.steps
        early = self._is_early(layer) and 2 <= k <= self.stats_every
        return k == 1 or k % self.stats_every == 0 or early

    def _is_refresh_step(self, layer):
        """Whether P is recomputed in the layer's current step."""
        k = layer.steps
        early = self._is_early(layer) and k & (k - 1) == 0 and k < self.inverse_every
        return k == 1 or k % self.inverse_every == 0 or early

    def _statistics_correction(self, layer):
        """What G and v are divided by to give G_hat and v_hat."""
        return 1.0 if layer.warm else 1.0 - self.beta**layer.updates

    def _corrected_momentum(self, layer):
        """M_hat."""
        return (1.0 - self.momentum) / (1.0 - self.momentum**layer.steps) * layer.M

    def _elementwise_direction(self, layer, D):
        """The step of an elementwise layer, without the learning rate and the decay."""
        layer.v = self.beta * layer.v + (1.0 - self.beta) * D * D
        v_hat = layer.v / (1.0 if layer.warm else 1.0 - self.beta**layer.steps)
        M = self._corrected_momentum(layer) if self.graft else layer.M
        return M / (np.sqrt(v_hat) + EPSILON)

    def _block_direction(self, layer, N, C):
        """The step of a block layer, after its statistics and inverses are brought up to date."""
        if self._is_statistics_step(layer):
            self._update_statistics(layer, N, C)
        if self._is_refresh_step(layer):
            self._refresh(layer)
        direction = np.zeros_like(layer.M)
        for block, P in zip(layer.blocks, layer.P, strict=True):
            direction[block] = N[block] @ P.swapaxes(1, 2)
        if self.graft:
            norm = np.linalg.norm(direction)
            if norm != 0.0:
                direction = layer.target_norm * direction / norm
        return direction

    def _update_statistics(self, layer, N, C):
        """One update of G, v and the target norm."""
        layer.updates += 1
        layer.G = [
            self.beta * G + (1.0 - self.beta) * outer_products(C[block])
            for G, block in zip(layer.G, layer.blocks, strict=True)
        ]
        layer.v = self.beta * layer.v + (1.0 - self.beta) * C * C
        self._set_target_norm(layer, N, layer.v / self._statistics_correction(layer))

    def _set_target_norm(self, layer, N, v_hat):
        gradients = layer.steps + self.nesterov  # that N is a sum of, decayed
        N_hat = (1.0 - self.momentum) / (1.0 - self.momentum**gradients) * N
        adam = N_hat / (np.sqrt(v_hat) + EPSILON)
        layer.target_norm = np.linalg.norm(np.clip(adam, -1.0, 1.0))

    def _refresh(self, layer):
        """Computes P of every block from its G."""
        correction = self._statistics_correction(layer)
        G_hat = [G / correction for G in layer.G]
        damping = self.damping
        if damping is None:
            damping = 3e-3
            if self.graft:
                damping = 0.3 if layer.power == -1.0 else 1e-3
        if self.damping_scale == "layer":
            diagonals = [np.diagonal(G, axis1=1, axis2=2).ravel() for G in G_hat]
            mean = np.mean(np.concatenate(diagonals))
            damping = max(damping * mean, SMALLEST_RELATIVE_DAMPING)
        layer.P = [
            damped_powers(G, damping, layer.power, P) for G, P in zip(G_hat, layer.P, strict=True)
        ]

    def _move(self, layer, direction):
        """W <- W - lr (direction + weight_decay W), in place in `params`."""
        W = layer.joined(self.params)
        W = W - self.lr * (direction + self.weight_decay * W)
        start = 0
        for name in layer.names:
            target = self.params[name]
            target[...] = W[start : start + target.size].reshape(target.shape)
            start += target.size
