"""Which backend serves a call, and the error when a backend cannot serve it."""

import re

import pytest
import torch

import mbf_kernels as mk
from mbf_kernels.backends import registry as choice
from mbf_kernels.extension import EXTENSION

NAMES = tuple(choice.BACKENDS)
ONE_OF_THEM = f"expected one of {', '.join(NAMES)}"


def test_every_backend_says_whether_and_why_it_is_available():
    found = mk.backends()
    assert tuple(found) == NAMES
    preferred = ["cpu", "cuda", "triton", "torch"]
    assert [name for name in found if name in preferred] == preferred
    for name, status in found.items():
        assert isinstance(status, mk.Availability)
        assert bool(status) is status.available, name
        assert status.reason, f"{name}: no reason"
        prefix = "available: " if status else "not available: "
        assert str(status) == prefix + status.reason
    assert found["torch"]
    assert bool(found["cpu"]) is (EXTENSION is not None)


def test_the_cpu_backend_names_its_instruction_set(extension):
    for name in extension.runnable_isas():
        extension.select_isa(name)
        try:
            assert name in mk.backends()["cpu"].reason
            assert mk.build_info().current_isa == name
        finally:
            extension.select_isa("")


@pytest.mark.parametrize("name", ["", "CPU", "numpy", "auto"])
def test_an_unknown_backend_is_refused(name):
    match = f"use_backend: {ONE_OF_THEM}, got {re.escape(repr(name))}"
    with pytest.raises(ValueError, match=match), mk.use_backend(name):
        pass


@pytest.mark.parametrize("name", NAMES)
def test_a_backend_that_is_not_available_says_why(name):
    status = mk.backends()[name]
    if status:
        pytest.skip(f"{name} is available here")
    match = re.escape(f"use_backend: backend '{name}' is not available: {status.reason}")
    with pytest.raises(RuntimeError, match=match), mk.use_backend(name):
        pass


def test_use_backend_nests_and_restores_the_choice(backend):
    cpu = torch.device("cpu")
    with mk.use_backend("torch"):
        assert choice.resolve(cpu) == "torch"
        if mk.backends()["cpu"]:
            with mk.use_backend("cpu"):
                assert choice.resolve(cpu) == "cpu"
        assert choice.resolve(cpu) == "torch"
    assert choice.resolve(cpu) == backend


def test_use_backend_restores_the_choice_after_an_error():
    before = choice.resolve(torch.device("cpu"))
    with pytest.raises(ZeroDivisionError), mk.use_backend("torch"):
        raise ZeroDivisionError
    assert choice.resolve(torch.device("cpu")) == before


def test_the_chosen_backend_runs(extension, monkeypatch):
    """The torch backend runs the reference, the cpu backend does not."""
    calls = []
    original = choice.TORCH.spd_inverse
    monkeypatch.setattr(
        choice.TORCH, "spd_inverse", lambda *args: calls.append(args) or original(*args)
    )
    A = torch.eye(3)
    with mk.use_backend("cpu"):
        mk.spd_inverse(A)
    assert len(calls) == 0
    with mk.use_backend("torch"):
        mk.spd_inverse(A)
    assert len(calls) == 1


class TestEnvironment:
    @pytest.fixture(autouse=True)
    def _read_again(self):
        """Clears the cache: a process reads the environment only once."""
        choice._of_environment.cache_clear()
        yield
        choice._of_environment.cache_clear()

    def test_the_variable_chooses_the_backend(self, monkeypatch):
        monkeypatch.setenv("MBF_BACKEND", "torch")
        assert choice.resolve(torch.device("cpu")) == "torch"

    def test_an_empty_variable_means_automatic(self, monkeypatch, extension):
        monkeypatch.setenv("MBF_BACKEND", "")
        assert choice.resolve(torch.device("cpu")) == "cpu"

    def test_use_backend_takes_precedence(self, monkeypatch, extension):
        monkeypatch.setenv("MBF_BACKEND", "torch")
        with mk.use_backend("cpu"):
            assert choice.resolve(torch.device("cpu")) == "cpu"

    def test_an_unknown_backend_is_refused_at_the_first_call(self, monkeypatch):
        monkeypatch.setenv("MBF_BACKEND", "numpy")
        match = f"MBF_BACKEND: {ONE_OF_THEM}, got 'numpy'"
        with pytest.raises(ValueError, match=match):
            mk.spd_inverse(torch.eye(2))

    def test_a_backend_that_is_not_available_is_refused_at_the_first_call(self, monkeypatch):
        missing = [name for name, status in mk.backends().items() if not status]
        if not missing:
            pytest.skip("every backend is available here")
        monkeypatch.setenv("MBF_BACKEND", missing[0])
        match = f"MBF_BACKEND: backend '{missing[0]}' is not available"
        with pytest.raises(RuntimeError, match=match):
            mk.MiniBlocks([torch.zeros(9)], 9).update_([torch.zeros(9)], beta=0.5)


def test_the_cpu_backend_refuses_tensors_of_other_devices(extension):
    with mk.use_backend("cpu"), pytest.raises(RuntimeError, match="tensors are on meta"):
        mk.spd_inverse(torch.eye(3, device="meta"))


def test_build_info_describes_the_extension(extension):
    info = mk.build_info()
    assert info.extension
    assert info.why_missing == ""
    assert info.running_torch == torch.__version__
    assert info.compiled_isas[0] == "baseline"
    assert set(info.runnable_isas) <= set(info.compiled_isas)
    assert info.current_isa in info.runnable_isas
    assert info.built_with_torch
    assert info.compiler


def test_an_instruction_set_that_cannot_run_is_refused(extension):
    with pytest.raises(RuntimeError, match=r"expected one of baseline.* got 'mmx'"):
        extension.select_isa("mmx")
    for name in set(extension.compiled_isas()) - set(extension.runnable_isas()):
        with pytest.raises(RuntimeError, match=f"this machine cannot run '{name}'; it can run: "):
            extension.select_isa(name)
    assert mk.build_info().current_isa in extension.runnable_isas()
