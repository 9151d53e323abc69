"""How read-only memory is found: by asking the system, never by touching the memory."""

import mmap
import os
import subprocess
import threading

import pytest
import torch

import mbf_kernels as mk
from tests.support.child_process import output_of, python

WAYS = pytest.mark.parametrize("from_list", [False, True], ids=["query", "list"])


def mappings():
    found = []
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, protection, *_ = line.split()
            begin, end = (int(address, 16) for address in span.split("-"))
            found.append((begin, end, "w" in protection))
    return found


@pytest.fixture(autouse=True)
def _asks_the_system(extension, device):
    if device.type != "cpu" or not os.path.exists("/proc/self/maps"):
        pytest.skip("for CPU tensors on Linux")


@WAYS
def test_protections_are_those_of_the_system(extension, from_list):
    if not from_list and extension.mapping_of(mappings()[0][0], False) is None:
        pytest.skip("this system answers for the list of all mappings only")
    seen = set()
    for begin, end, writable in mappings():
        for address in (begin, (begin + end) // 2, end - 1):
            found = extension.mapping_of(address, from_list)
            if found is None or found[:2] != (begin, end):
                continue  # mapped anew since the list was read, by asking
            assert found[2] == writable, hex(address)
            seen.add(writable)
    assert seen == {True, False}
    assert extension.mapping_of(8, from_list) is None  # nothing is mapped there


def test_a_write_of_another_process_is_never_undone(extension, tmp_path):
    """The child sees every value it has written, while this process asks about the memory."""
    path = tmp_path / "shared"
    path.write_bytes(bytes(mmap.PAGESIZE))
    script = """
        import mmap, sys, time
        with open(sys.argv[1], "r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        lost = writes = 0
        stop = time.monotonic() + 1.5
        print("ready", flush=True)
        while time.monotonic() < stop:
            for value in range(1, 256):
                memory[0] = value
                lost += memory[0] != value
                writes += 1
        print(writes, lost)
        """
    with subprocess.Popen(python(script, path), stdout=subprocess.PIPE, text=True) as child:
        shared = torch.from_file(str(path), shared=True, size=mmap.PAGESIZE, dtype=torch.uint8)
        child.stdout.readline()
        while child.poll() is None:
            for _ in range(1000):
                assert extension.memory_is_writable(shared.data_ptr(), shared.numel())
        writes, lost = map(int, child.stdout.readline().split())
    assert writes > 10_000
    assert lost == 0


def one_step():
    params = [torch.zeros(17 * 9)]
    blocks = mk.MiniBlocks(params, 9)
    blocks.step_(params, [torch.ones(17 * 9)], [torch.zeros(17 * 9)], lr=0.1)
    return params[0]


def test_threads_leave_no_descriptors(extension):
    one_step()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        thread = threading.Thread(target=one_step)
        thread.start()
        thread.join()
    assert len(os.listdir("/proc/self/fd")) == before


def test_other_programs_and_files_are_left_alone(tmp_path):
    """The descriptor is not inherited; closed and reused, the other file is not written."""
    script = """
        import os, subprocess, sys
        import torch, mbf_kernels as mk

        def step():
            params = [torch.zeros(17 * 9)]
            mk.MiniBlocks(params, 9).step_(
                params, [torch.ones(17 * 9)], [torch.zeros(17 * 9)], lr=0.1
            )
            return float(params[0].sum())

        before = set(os.listdir("/proc/self/fd"))
        moved = step()
        opened = [int(fd) for fd in set(os.listdir("/proc/self/fd")) - before]
        opened = [fd for fd in opened if os.path.exists(f"/proc/self/fd/{fd}")]
        child = "import os; print(sorted(os.listdir('/proc/self/fd')))"
        inherited = subprocess.run(
            [sys.executable, "-c", child], close_fds=False, capture_output=True, text=True
        ).stdout
        print([fd for fd in opened if f"'{fd}'" in inherited])
        for fd in opened:
            os.close(fd)
        with open(sys.argv[1], "w+b") as file:
            print(step() == moved, file.tell(), os.path.getsize(sys.argv[1]))
        pid = os.fork()
        if pid == 0:
            os._exit(0 if step() == moved else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    lines = output_of(python(script, tmp_path / "other")).splitlines()
    assert lines == ["[]", "True 0 0", "0"]
