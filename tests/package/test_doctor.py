"""The doctor's page (``python -m mbf_kernels``) is true, and its self-tests find wrong results."""

import json
import sys

import pytest
import torch

import mbf_kernels as mk
from mbf_kernels import __main__ as page
from mbf_kernels import doctor
from mbf_kernels.backends.registry import resolve
from tests.support.child_process import output_of


def page_of(*arguments):
    return output_of([sys.executable, "-m", "mbf_kernels", *arguments])


def test_the_page_names_versions_and_backends():
    text = page_of()
    assert text.startswith(f"mbf_kernels {mk.__version__}\n")
    for name, status in mk.backends().items():
        assert f"  {name:<13} {status}\n" in text
    assert f"served by the backend {resolve(torch.device('cpu'))!r}" in text
    assert f"torch         {torch.__version__}\n" in text
    assert text.count(": ok, worst error") == len(list(doctor.self_tests()))


def test_the_page_as_json():
    found = json.loads(page_of("--json"))
    assert found["version"] == mk.__version__
    assert found["devices"]["cpu"]["backend"] == resolve(torch.device("cpu"))
    assert all(test["passed"] for test in found["self_tests"])
    assert {test["backend"] for test in found["self_tests"]} >= {"torch"}


def test_the_options_help_and_no_test():
    assert "--json" in page_of("--help")
    assert "self-test" not in page_of("--no-test")


def test_the_self_tests_cover_every_backend_of_the_cpu():
    tests = list(doctor.self_tests())
    on_cpu = [test.backend for test in tests if test.device == "cpu"]
    assert on_cpu[0] == resolve(torch.device("cpu"))
    assert set(on_cpu) >= {"torch"} | ({"cpu"} if mk.backends()["cpu"] else set())
    assert all(0 < test.worst <= 1 for test in tests)


@pytest.mark.parametrize("fault", ["inverse", "step", "dense", "raise"])
def test_the_self_tests_find_a_wrong_result(fault, monkeypatch, capsys):
    step, invert = mk.MiniBlocks.fused_step_, doctor.spd_inverse

    def bad_step(self, params, *args, **options):
        step(self, params, *args, **options)
        if fault == "inverse":
            self._state.inverse[0, 0, 3] *= 1.01
        if fault == "step":
            params[0][7, 0] += 0.01
        if fault == "raise":
            raise RuntimeError("no such instruction")

    def bad_inverse(matrices):
        inverse, info = invert(matrices)
        if fault == "dense":
            inverse[3, 0, 0] = float("nan")
        return inverse, info

    monkeypatch.setattr(mk.MiniBlocks, "fused_step_", bad_step)
    monkeypatch.setattr(doctor, "spd_inverse", bad_inverse)
    assert not any(test.passed for test in doctor.self_tests())
    monkeypatch.setattr(sys, "argv", ["mbf_kernels"])
    assert page.main() == 1
    assert "FAILED" in capsys.readouterr().out
