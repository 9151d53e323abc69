"""The strides by which kernels walk rows, against plain indexing."""

import pytest
import torch

from mbf_kernels.row_view import is_plain, row_view
from mbf_kernels.rows import RowForm
from tests.blocks.test_shared_blocks import SCENES, channels_last, spread, transposed


def walked(tensor, view, groups, rows, columns):
    """``[groups, rows, columns]``, read element by element from the memory of a tensor."""
    memory = tensor.as_strided((tensor.untyped_storage().nbytes() // 8,), (1,), 0)
    g = torch.arange(groups)[:, None, None]
    r = torch.arange(rows)[None, :, None]
    c = torch.arange(columns)[None, None, :]
    return memory[
        g * view.group_stride
        + r // view.row_inner * view.row_outer_stride
        + r % view.row_inner * view.row_stride
        + c // view.inner * view.outer_stride
        + c % view.inner * view.inner_stride
    ]


@pytest.mark.parametrize("form", [torch.clone, channels_last, transposed, spread])
@pytest.mark.parametrize("scene", SCENES)
def test_every_element_of_every_row_is_reached(scene, form):
    for i, layer in enumerate(SCENES[scene]()):
        rows = RowForm.of(layer, 18, i)
        weight = form(layer.weight)
        view = row_view(weight, rows, False)
        expected = rows.as_rows(layer.weight, None)
        if view is None:  # rows of their own need one stride over inputs and outputs
            assert rows.kind == "kernels"
            assert rows.groups > 1
            assert form in (channels_last, transposed)
            continue
        assert torch.equal(walked(weight, view, *expected.shape), expected)
        if is_plain(weight, rows, False):  # then rows come in the order of memory
            in_memory = weight.as_strided((weight.numel(),), (1,))
            assert torch.equal(in_memory, expected.flatten())
        if layer.bias is not None:
            bias = form(layer.bias)
            view = row_view(bias, rows, True)
            expected = layer.bias.view(rows.groups, rows.rows, 1)
            assert torch.equal(walked(bias, view, *expected.shape), expected)


def test_memory_that_two_strides_cannot_walk_has_no_view():
    weight = torch.zeros(3, 2, 3, 4).permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3)
    form = RowForm("rows", 1, 3, 24, 12, (3, 2, 3, 4), False)
    assert row_view(weight, form, False) is None
    assert row_view(weight.contiguous(), form, False) is not None
