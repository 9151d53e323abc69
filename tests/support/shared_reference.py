"""An independent float64 computation of blocks that rows share, element by element."""

import math

import torch


def piece_width(inputs, bias, kernel, max_block):
    """The width of the pieces of longer rows, found by trying every one.

    The fewest pieces count, and then the most even ones. Pieces of linear layers have a multiple of
    8 columns if ``max_block`` allows that. A bias that all pieces are too full for is a piece by
    itself.
    """
    allowed = [w for w in range(kernel, max(max_block, kernel) + 1) if w % kernel == 0]
    fewest = math.ceil(inputs / allowed[-1])
    even = next((w for w in allowed if fewest * w >= inputs + bias), allowed[-1])
    rounded = [w for w in allowed if w >= even and w % 8 == 0]
    return rounded[0] if kernel == 1 and rounded else even


class ExactLayer:
    """One layer: where its elements lie, and its statistics, in float64.

    ``places[g][r]`` lists the elements of row ``r`` of group ``g`` as ``(tensor, index)``, where
    tensor 0 is the weight and 1 the bias. It is made by plain loops over the weight's indices.
    """

    def __init__(self, rows, max_block):
        shape = tuple(rows.weight.shape)
        kernel = math.prod(shape[2:])

        def at(a, b, k):
            return (0, (a * shape[1] + b) * kernel + k)

        if rows.kernels:
            every = [
                [at(o, i, k) for k in range(kernel)]
                for o in range(shape[0])
                for i in range(shape[1])
            ]
            self.places = [[row] for row in every] if rows.own else [every]
            width = kernel
        else:
            self.places = []
            for g in range(rows.groups):
                inputs = shape[0] // rows.groups if rows.transposed else shape[1]
                outputs = shape[1] if rows.transposed else shape[0] // rows.groups
                group = []
                for r in range(outputs):
                    if rows.transposed:
                        row = [
                            at(g * inputs + i, r, k) for i in range(inputs) for k in range(kernel)
                        ]
                    else:
                        o = g * outputs + r
                        row = [at(o, i, k) for i in range(inputs) for k in range(kernel)]
                    if rows.bias is not None:
                        row.append((1, g * outputs + r))
                    group.append(row)
                self.places.append(group)
            if rows.own:
                self.places = [[row] for row in self.places[0]]
            columns = len(self.places[0][0])
            width = columns
            if max_block is not None and columns > max_block:
                bias = rows.bias is not None
                width = piece_width(columns - bias, bias, kernel, max_block)
        # The same as indices into the weight followed by the bias.
        self.counts = [t.numel() for t in (rows.weight, rows.bias) if t is not None]
        self.indices = [
            [[t * self.counts[0] + i for t, i in row] for row in group] for group in self.places
        ]
        columns = len(self.places[0][0])
        self.cuts = [(c, min(c + width, columns)) for c in range(0, columns, width)]
        self.width = width
        pairs = [(g, p) for g in range(len(self.places)) for p in range(len(self.cuts))]
        self.G = {
            (g, p): torch.zeros(self._size(p), self._size(p), dtype=torch.float64) for g, p in pairs
        }
        self.P = {key: torch.eye(len(G), dtype=torch.float64) for key, G in self.G.items()}
        self.weight = dict.fromkeys(pairs, 0.0)
        self.target = 0.0

    def _size(self, p):
        return self.cuts[p][1] - self.cuts[p][0]

    def _pieces(self, tensors):
        """``{(g, p): [rows, size]}`` of a weight and a bias; zeros where one is None."""
        flat = torch.cat([self._flat(tensors, t) for t in range(len(self.counts))])
        return {
            (g, p): flat[torch.tensor(group)][:, first:last]
            for g, group in enumerate(self.indices)
            for p, (first, last) in enumerate(self.cuts)
        }

    def _flat(self, tensors, t):
        if tensors[t] is None:
            return torch.zeros(self.counts[t], dtype=torch.float64)
        return tensors[t].detach().cpu().double().reshape(-1)

    def _write(self, pieces, tensors):
        flat = torch.zeros(sum(self.counts), dtype=torch.float64)
        for g, group in enumerate(self.indices):
            for p, (first, last) in enumerate(self.cuts):
                flat[torch.tensor(group)[:, first:last]] = pieces[g, p]
        for tensor, part in zip(tensors, flat.split(self.counts), strict=False):
            if tensor is not None:
                tensor.copy_(part.reshape(tensor.shape))

    def update(self, grads, beta, squares=None):
        D = self._pieces(grads)
        V = None if squares is None else self._pieces(squares)
        for key, d in D.items():
            finite = d.square().sum(1).isfinite()
            d = torch.where(finite[:, None], d, 0.0)
            outer = sum((torch.outer(row, row) for row in d), torch.zeros_like(self.G[key]))
            self.G[key] = beta * self.G[key] + (1 - beta) * outer / len(d)
            self.weight[key] = beta * self.weight[key] + (1 - beta)
            if V is not None:
                V[key] = beta * V[key] + (1 - beta) * d * d
        if V is not None:
            self._write(V, squares)

    def invert(self, damping, relative, debias, power=-1.0):
        unbiased = {key: G / (self.weight[key] or 1.0) for key, G in self.G.items()}
        if relative:
            count = sum(len(G) for G in unbiased.values())
            damping = max(damping * sum(G.trace().item() for G in unbiased.values()) / count, 1e-30)
        for key, G in (unbiased if debias else self.G).items():
            values, vectors = torch.linalg.eigh(G + damping * torch.eye(len(G)).double())
            self.P[key] = (vectors * values**power) @ vectors.T

    def step(self, params, grads, momenta, lr, momentum, decay, squares=None, correction=1.0,
             rescale=False, refresh=False, nesterov=False):  # fmt: skip
        D, M, W = (self._pieces(each) for each in (grads, momenta, params))
        M = {key: momentum * m + D[key] for key, m in M.items()}
        N = {key: momentum * m + D[key] for key, m in M.items()} if nesterov else M
        U = {key: n @ self.P[key] for key, n in N.items()}
        if refresh:
            V, total = self._pieces(squares), 0.0
            for key, m in N.items():
                root = (V[key] / (self.weight[key] or 1.0)).sqrt() + 1e-8
                steps = (correction * m / root).clamp(-1, 1).square().sum(1)
                total += steps[m.isfinite().all(1)].sum().item()
            self.target = math.sqrt(total)
        if rescale:
            squares_of = torch.cat([u.square().sum(1) for u in U.values()])
            norm = math.sqrt(squares_of[squares_of.isfinite()].sum().item())
            U = {key: u * (self.target / norm if norm > 0 else 0.0) for key, u in U.items()}
        self._write(M, momenta)
        moving = [p if g is not None else None for p, g in zip(params, grads, strict=True)]
        self._write({key: w - lr * (U[key] + decay * w) for key, w in W.items()}, moving)
