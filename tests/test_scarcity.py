"""Where the system gives less than is asked for: descriptors, room for files, shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from engines import START_METHODS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc, and mounts")

#: A program with `build(n, **options)`, environments that step as they should, and `held()`, what it holds by now.
PROGRAM = """
import errno, functools, os, resource, sys, tempfile
import numpy as np
import psutil
from gymnasium import spaces
from engines import eventually, make_engine, reset
from toys import ConstantEnv, CountingEnv
from fastvec import errors

method = {method!r}

def build(n, **options):
    return make_engine(
        [functools.partial(CountingEnv, i) for i in range(n)], num_workers=n, start_method=method, **options
    )

def works(engine):
    with_zeros = np.zeros(engine.num_envs, np.int64)
    reset(engine)
    for count in (1, 2):
        engine.send(with_zeros)
        assert engine.recv().observations.tolist() == [[i, 0, count] for i in range(engine.num_envs)]
    engine.close()

def held():
    return len(os.listdir("/proc/self/fd")), len(psutil.Process().children(recursive=True))

def allow(descriptors):
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def try_to_build(n, **options):
    # The error, or None where it works.
    try:
        engine = build(n, **options)
    except Exception as error:
        return error
    works(engine)

works(build(1))  # what is opened once for good is open
{rest}
print("done")
"""

UNSHARE = ["unshare", "-Urm", "sh", "-ec"]
#: 1 MB of /dev/shm and a small temporary folder for the program that follows.
SMALL = 'mount -t tmpfs -o size=1m tmpfs /dev/shm; mount -t tmpfs -o size=16k tmpfs "$TMPDIR"; exec "$@"'


def run(method, rest, *, prefix=(), environ=None):
    """Run the program; it must end by itself, say nothing else, and find true what it asserts."""
    code = PROGRAM.format(method=method, rest=textwrap.dedent(rest))
    done = subprocess.run(
        [*prefix, sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=150,
        env=environ,
        cwd=Path(__file__).parent,
    )
    assert done.stderr == ""
    assert done.stdout == "done\n"


@pytest.mark.parametrize(
    ("method", "descriptors", "few", "many"),
    [
        ("fork", 64, 8, 24),
        ("spawn", 64, 4, 24),
        ("forkserver", 64, 8, 24),
        ("forkserver", 256, 16, 100),
    ],
)
def test_few_descriptors_are_enough_or_an_error(method, descriptors, few, many):
    """Those of a container serve some workers; too many workers are told why, and fewer still work."""
    run(
        method,
        f"""
        allow({descriptors})
        before = held()
        works(build({few}))
        assert held() == before
        error = try_to_build({many})
        assert isinstance(error, OSError) and "Too many open files" in str(error), repr(error)
        assert eventually(lambda: held() == before), (held(), before)
        works(build(2))
        """,
    )


@pytest.mark.parametrize("method", START_METHODS)
def test_a_start_that_runs_out_of_descriptors_at_any_point_leaves_nothing(method):
    """From none to enough, one more each time: an error that says so, until it works."""
    run(
        method,
        """
        highest = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        before = held()
        found = []
        for more in range(40):
            allow(before[0] - 1 + more)  # one was open for the look
            error = try_to_build(2)
            allow(highest)
            assert eventually(lambda: held() == before), (more, held(), before, error)
            if error is None:
                break
            assert isinstance(error, OSError) and "Too many open files" in str(error), (more, repr(error))
        assert 3 < more < 39, more
        """,
    )


@pytest.fixture
def full(tmp_path):
    """A prefix for programs that have no room for files, and their variables."""
    if subprocess.run([*UNSHARE, "mount -t tmpfs tmpfs /dev/shm"], capture_output=True).returncode:
        pytest.skip("this system does not let us mount anything")
    return {"prefix": [*UNSHARE, SMALL, "sh"], "environ": {**os.environ, "TMPDIR": str(tmp_path)}}


FULL_PROGRAM = """
assert tempfile.gettempdir() == os.environ["TMPDIR"]
with open(os.path.join(tempfile.gettempdir(), "full"), "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError as error:
        assert error.errno == errno.ENOSPC
space = spaces.Box(0, 255, (1024, 1024), np.uint8)

def build_large():
    fns = [functools.partial(ConstantEnv, space, np.full(space.shape, i, np.uint8)) for i in range(4)]
    return make_engine(fns, start_method=method)

before = held()
"""


@pytest.mark.parametrize("method", START_METHODS)
def test_a_full_temporary_folder_and_1_mb_of_dev_shm_are_enough(method, full):
    """As in a container, for 8 MB of observations: they are in neither."""
    run(
        method,
        FULL_PROGRAM
        + textwrap.dedent("""
        engine = build_large()
        assert reset(engine).observations[:, 0, 0].tolist() == [0, 1, 2, 3]
        engine.send(np.zeros(4, np.int64))
        assert engine.recv().observations[:, -1, -1].tolist() == [0, 1, 2, 3]
        engine.close()
        assert sorted(os.listdir(tempfile.gettempdir())) == ["full"]
        assert os.listdir("/dev/shm") == []
        """),
        **full,
    )


@pytest.mark.parametrize("method", START_METHODS)
def test_a_full_temporary_folder_is_named_where_it_is_needed(method, full):
    """Where the system has no anonymous memory: how much is needed, where it is not, what to do; nothing stays."""
    run(
        method,
        FULL_PROGRAM
        + textwrap.dedent("""
        del os.memfd_create
        try:
            build_large()
        except errors.SharedMemoryError as error:
            assert "bytes is needed and " + tempfile.gettempdir() in str(error), error
            assert "0 are free" in str(error) and "point TMPDIR at a larger place" in str(error), error
        else:
            raise AssertionError("there is room")
        assert eventually(lambda: held() == before), (held(), before)
        assert sorted(os.listdir(tempfile.gettempdir())) == ["full"]
        assert os.listdir("/dev/shm") == []
        """),
        **full,
    )
