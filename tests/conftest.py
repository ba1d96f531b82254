"""Every test leaves the machine as it found it: no child, no descriptor, no entry in /dev/shm."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import psutil
import pytest
from engines import eventually


def pytest_addoption(parser):
    """Without it a sample of the fault matrix is run."""
    parser.addoption("--all-faults", action="store_true", help="run all of the fault matrix")


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def _descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
    return found


def _shared_files() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


@pytest.fixture(scope="session", autouse=True)
def imported_modules_are_not_garbage():
    """Take what has been imported out of the sight of the collector, which otherwise walks it twice a test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request):
    """Fail a test that leaves a process, a descriptor or shared memory."""
    if request.node.get_closest_marker("leaves_something") or not Path("/proc/self/fd").exists():
        yield
        return
    gc.collect()
    children, descriptors, files = _children(), _descriptors(), _shared_files()
    yield
    gc.collect()
    assert eventually(lambda: _children() <= children), f"left processes: {_children() - children}"
    # What libraries open once for good (random devices, event loops) is no leak of ours: count what we open.
    ours = ("socket:", "pipe:", "anon_inode:[pidfd]", "/memfd:")
    left = {fd: name for fd, name in _descriptors().items() if fd not in descriptors and name.startswith(ours)}
    assert not left, f"left descriptors: {left}"
    # Other programs of this machine have semaphores there, too, and may take their time to give them back.
    assert eventually(lambda: _shared_files() <= files, 30), f"left in /dev/shm: {_shared_files() - files}"
