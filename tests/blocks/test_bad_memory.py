"""Memory that a step must not write because it is shared, read-only or tracked by autograd."""

import warnings

import numpy as np
import pytest
import torch

import mbf_kernels as mk
from tests.support.block_checks import make
from tests.support.child_process import output_of, python
from tests.support.scene import D

OVERLAP = "expected separate memory, but they overlap"


def test_overlapping_tensors_of_one_list_are_refused(scene):
    same = torch.zeros_like(scene.params[1])
    d = scene.blocks.block_size
    for name in ("params", "momenta"):
        wrong = [same[:3], same]
        scene.refuses(ValueError, OVERLAP, lambda s, n=name, w=wrong: s.step(**{n: w}))
    assert same.shape == (17, d)
    assert not same.any()


def test_momenta_in_the_memory_of_parameters_are_refused(scene):
    match = r"(params|momenta)\[0\] and (params|momenta)\[0\]: " + OVERLAP
    scene.refuses(ValueError, match, lambda s: s.step(momenta=[s.params[0], s.momenta[1]]))


@pytest.mark.parametrize("written", ["params", "momenta"])
def test_gradients_in_written_memory_are_refused(scene, written):
    def call(s):
        s.step(grads=[s.grads[0], getattr(s, written)[1]])

    match = rf"(grads\[1\] and {written}\[1\]|{written}\[1\] and grads\[1\]): {OVERLAP}"
    scene.refuses(ValueError, match, call)


def test_a_partial_overlap_is_refused(scene):
    """One shared element is enough."""
    n = scene.params[1].numel()
    memory = torch.zeros(2 * n - 1, device=scene.blocks.device)
    params, momenta = memory[:n], memory[n - 1 :]
    scene.refuses(
        ValueError,
        OVERLAP,
        lambda s: s.step(params=[s.params[0], params], momenta=[s.momenta[0], momenta]),
    )
    assert not memory.any()


def test_adjacent_memory_does_not_count_as_overlapping(scene):
    n = scene.params[1].numel()
    memory = torch.zeros(3 * n, device=scene.blocks.device)
    params, grads, momenta = memory[:n], memory[n : 2 * n], memory[2 * n :]
    grads.fill_(1.0)
    scene.step(
        params=[scene.params[0], params],
        grads=[scene.grads[0], grads],
        momenta=[scene.momenta[0], momenta],
    )
    assert (grads == 1.0).all()
    assert (momenta == 1.0).all()
    assert params.any()


def test_gradients_may_share_memory(backend, device):
    """They are only read."""
    blocks, params, grads, momenta = make([(3, D), (3, D)], D, device=device)
    blocks.fused_step_(params, [grads[0], grads[0]], momenta, lr=0.1, damping=0.5)
    assert torch.equal(*blocks.stats().split(3))


@pytest.mark.parametrize("name", ["params", "momenta"])
def test_an_expanded_tensor_is_refused(scene, name):
    d = scene.blocks.block_size
    row = torch.zeros(1, d, device=scene.blocks.device)
    wrong = [row.expand(3, d), getattr(scene, name)[1]]
    match = rf"{name}\[0\]: several of its numbers share memory"
    scene.refuses(ValueError, match, lambda s: s.step(**{name: wrong}))
    assert not row.any()


def read_only(path, count):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(np.memmap(path, dtype=np.float32, mode="r", shape=(count,)))


@pytest.fixture
def read_only_file(tmp_path, device, extension):
    if device.type != "cpu":
        pytest.skip("memory maps are CPU memory")
    path = tmp_path / "values"
    np.full(17 * 65, 2.0, dtype=np.float32).tofile(path)
    return path


@pytest.mark.parametrize("name", ["params", "momenta"])
def test_read_only_memory_is_refused(read_only_file, scene, name):
    mapped = read_only(read_only_file, 17 * scene.blocks.block_size)
    wrong = [getattr(scene, name)[0], mapped]
    match = rf"{name}\[1\]: its memory is read-only"
    scene.refuses(ValueError, match, lambda s: s.step(**{name: wrong}))
    assert (mapped == 2.0).all()


def test_read_only_target_norms_are_refused_if_they_are_refreshed(read_only_file, backend, device):
    script = """
        import sys, warnings
        import numpy as np, torch, mbf_kernels as mk
        warnings.simplefilter("ignore")
        norms = torch.from_numpy(np.memmap(sys.argv[1], dtype=np.float64, mode="r", shape=(1,)))
        params, grads, momenta = ([torch.ones(9)] for _ in range(3))
        blocks = mk.MiniBlocks(params, 9)
        options = {"lr": 0.1, "damping": 0.5, "target_norms": norms}
        with mk.use_backend(sys.argv[2]):
            blocks.step_(params, grads, momenta, lr=0.1, target_norms=norms)
            kept = params[0].clone()
            try:
                blocks.fused_step_(params, grads, momenta, refresh_target_norms=True, **options)
            except ValueError as error:
                print(error, torch.equal(params[0], kept))
        """
    said = output_of(python(script, read_only_file, backend))
    assert said == "target_norms[0]: its memory is read-only True\n"


def test_gradients_may_be_read_only(read_only_file, scene):
    mapped = read_only(read_only_file, 17 * scene.blocks.block_size)
    scene.step(grads=[scene.grads[0], mapped])
    scene.blocks.update_([scene.grads[0], mapped], beta=0.5)


def test_memory_that_became_read_only_is_refused(read_only_file):
    """The system may map an address again as read-only: that is refused and does not crash."""
    script = """
        import sys, warnings
        import numpy as np, torch, mbf_kernels as mk
        warnings.simplefilter("ignore")
        count = 17 * 9
        grads, momenta = [torch.ones(count)], [torch.zeros(count)]
        blocks = mk.MiniBlocks([torch.zeros(count)], 9)

        def mapped(mode):
            return np.memmap(sys.argv[1], dtype=np.float32, mode=mode, shape=(count,))

        places = set()
        for mode in ("c", "r"):
            memory = mapped(mode)
            params = torch.from_numpy(memory)
            places.add(params.data_ptr())
            try:
                blocks.step_([params], grads, momenta, lr=0.1)
                print(mode, "written")
            except ValueError as error:
                print(mode, error)
            del params, memory
        print("same place" if len(places) == 1 else "another place")
        """
    lines = output_of(python(script, read_only_file)).splitlines()
    assert lines[:2] == ["c written", "r params[0]: its memory is read-only"]
    if lines[2] != "same place":
        pytest.skip("the system mapped the second file elsewhere")


def test_tensors_that_require_a_gradient_are_written_only_under_no_grad(scene):
    for name in ("params", "momenta"):
        watched = [t.clone().requires_grad_() for t in getattr(scene, name)]
        match = rf"{name}\[0\]: requires a gradient .* expected the call inside torch.no_grad\(\)"
        scene.refuses(RuntimeError, match, lambda s, n=name, w=watched: s.step(**{n: w}))
        with torch.no_grad():
            scene.step(**{name: watched})


def test_gradients_that_require_a_gradient_are_only_read(scene):
    watched = [g.clone().requires_grad_() for g in scene.grads]
    scene.step(grads=watched)
    scene.blocks.update_(watched, beta=0.5)
    assert not any(m.requires_grad for m in scene.momenta)


@pytest.mark.parametrize("name", ["params", "momenta"])
def test_inference_tensors_are_written_only_in_inference_mode(scene, name):
    """As with torch's own operations, they cannot be written outside inference mode."""
    with torch.inference_mode():
        frozen = [t.clone() for t in getattr(scene, name)]
    before = [t.clone() for t in frozen]
    scene.refuses(
        ValueError, rf"{name}\[0\]: its memory is read-only", lambda s: s.step(**{name: frozen})
    )
    assert all(torch.equal(a, b) for a, b in zip(frozen, before, strict=True))
    with torch.inference_mode():
        scene.step(**{name: frozen})
    assert not torch.equal(frozen[1], before[1])


def test_autograd_notices_a_step(scene):
    """Backward fails if a step changed a value it saved, as after any in-place operation."""
    weight = scene.params[1].clone().requires_grad_()
    loss = (weight * weight).sum()
    with torch.no_grad():
        scene.step(params=[scene.params[0], weight])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_step_raises_the_version_counters_of_what_it_writes(scene):
    before = [t._version for t in (*scene.params, *scene.momenta, *scene.grads)]
    scene.blocks.step_(scene.params, scene.grads, scene.momenta, lr=0.1)
    after = [t._version for t in (*scene.params, *scene.momenta, *scene.grads)]
    assert all(new > old for old, new in zip(before[:4], after[:4], strict=True))
    assert before[4:] == after[4:], "gradients are only read"


def test_a_step_of_a_view_raises_the_version_counter_of_its_base(backend, device):
    base = torch.zeros(2, D, device=device)
    view = base[1:]
    blocks = mk.MiniBlocks([view], D)
    version = base._version
    blocks.step_(
        [view], [torch.ones(1, D, device=device)], [torch.zeros(1, D, device=device)], lr=1.0
    )
    assert base._version > version
    assert base[0].eq(0).all()
    assert base[1].eq(-1).all()


@pytest.mark.parametrize("argument", ["target_norms", "refreshed target_norms", "damping"])
def test_values_per_tensor_that_are_parameters(backend, device, argument):
    """They are read while parameters move."""
    params = [torch.ones(4, dtype=torch.float64, device=device) for _ in range(2)]
    blocks = mk.MiniBlocks(params, 2)
    if device.type != "cpu":
        pytest.skip("float64 is served by plain torch there")
    values = params[1][:2]
    options = {"target_norms": values} if "norms" in argument else {"damping": values}
    if argument.startswith("refreshed"):
        options["refresh_target_norms"] = True
    grads, momenta = ([torch.ones_like(p) for p in params] for _ in range(2))
    name = argument.split()[-1]
    overlap = rf"(params\[1\] and {name}|{name}\[0\] and params\[1\]).*: expected separate memory"
    with pytest.raises(ValueError, match=overlap):
        blocks.fused_step_(params, grads, momenta, lr=0.1, **options)
    assert all((p == 1.0).all() for p in params)
    assert not blocks.stats().any()
