"""The naive computations agree with autograd on the network itself."""

from __future__ import annotations

import torch

from . import naive


def test_the_naive_network_is_the_network() -> None:
    network = naive.model()
    ((images, labels),) = naive.batches(1)
    logits, _ = naive.forward(naive.params_of(network), images)
    torch.testing.assert_close(logits, network(images))
    torch.testing.assert_close(naive.loss(logits, labels), naive.TASK.loss(logits, labels))


def test_patches_and_slopes_make_up_the_gradients() -> None:
    params = naive.params_of(naive.model())
    ((images, labels),) = naive.batches(1)
    for n, grads in enumerate(naive.sample_gradients(params, images, labels)):
        layers = naive.patches_and_slopes(params, images[n], labels[n])
        made = [
            torch.stack([torch.outer(g, a) for a, g in zip(*layer, strict=True)]).sum(dim=0)
            for layer in layers
        ]
        vectors = naive.layer_vectors(grads)
        for found, expected in zip(made, vectors, strict=True):
            torch.testing.assert_close(found.flatten(), expected)
        for back, grad in zip(naive.params_from(vectors, params), grads, strict=True):
            assert torch.equal(back, grad)
