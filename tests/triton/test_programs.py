"""How many programs the kernels for blocks in panels have, and how much scratch memory."""

import pytest
import torch

import mbf_kernels as mk
from mbf_kernels.backends.registry import BACKENDS
from tests.support.launch_count import DEVICE, launches_counted
from tests.support.requirements import require, triton

# Multiprocessors and bytes of the second-level cache.
CARDS = {"A100": (108, 40 << 20), "H100": (132, 50 << 20), "RTX 4090": (128, 72 << 20)}
SIZES = range(10, 65)
BLOCKS = 200_000


def inversions(d):
    """The two launches that invert, over more blocks than programs could share evenly."""
    require(triton)
    blocks = mk.MiniBlocks([torch.empty(BLOCKS, d, device=DEVICE)], d)
    blocks.invert_(damping=0.5)
    BACKENDS["triton"].spd_inverse(torch.empty(BLOCKS, d, d, device=DEVICE), 0.0)


@pytest.mark.parametrize("card", CARDS)
def test_every_multiprocessor_has_programs_whose_scratch_fits_the_cache(card):
    require(triton)
    multiprocessors, cache = CARDS[card]
    with launches_counted(multiprocessors) as log:
        for d in SIZES:
            log.clear()
            inversions(d)
            kernels = [each for each in log.noted if each.programs]
            assert [k.name for k in kernels] == ["invert_panel_blocks", "dense_panels"]
            for kernel in kernels:
                scratch = kernel.bytes_of[-1]
                assert kernel.programs >= 2 * multiprocessors, f"d={d}"
                assert scratch < cache, f"d={d}"
                # What the mathematics needs: a triangle of 4 x 4 panels and one of its columns.
                panels = -(-d // 4)
                triangle = 64 * (panels * (panels + 1) // 2 + panels)
                lanes = scratch // (kernel.programs * triangle)
                assert scratch == kernel.programs * triangle * lanes
                assert lanes in (16, 32, 64)


@pytest.mark.parametrize("d", [10, 32, 64])
def test_steps_and_updates_have_programs_for_every_multiprocessor(d):
    require(triton)
    with launches_counted() as log:
        weights = [torch.empty(BLOCKS, d, device=DEVICE)]
        blocks = mk.MiniBlocks(weights, d)
        log.clear()
        blocks.update_(weights, 0.5)
        blocks.step_(*([torch.empty_like(w) for w in weights] for _ in range(3)), lr=0.1)
        kernels = [each for each in log.noted if each.programs]
        assert [k.name for k in kernels] == ["panel_pass", "panel_pass"]
        for kernel in kernels:
            assert kernel.programs >= 4 * 108
            assert kernel.bytes_of[-1] <= 32 << 20


def test_few_blocks_have_no_more_programs_than_items():
    require(triton)
    with launches_counted() as log:
        blocks = mk.MiniBlocks([torch.empty(33, 64, device=DEVICE)], 64)
        log.clear()
        blocks.invert_(damping=0.5)
        assert [each.programs for each in log.noted if each.programs] == [3]
