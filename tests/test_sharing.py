"""fastvec.shared(): one array in all processes."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import subprocess
import sys

import numpy as np
import psutil
import pytest
from engines import START_METHODS, eventually, gone, make_engine, reset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from test_engine import assert_same
from toys import CountingEnv

import fastvec
from fastvec import errors
from fastvec._core.sharing import SharedMemory, SharingPickler, received
from fastvec._env_access import call_method

MB = 1 << 20


class ReadingEnv(CountingEnv):
    """Has arrays that it was given, and tells of them."""

    def __init__(self, env_id, *arrays):
        super().__init__(env_id)
        self.arrays = arrays

    def read(self):
        return [(array.copy(), array.flags.writeable, array.dtype, array.shape) for array in self.arrays]

    def grows(self):
        gc.collect()  # else it would copy pages of a forked worker at some time
        before = psutil.Process().memory_full_info().uss
        [float(array.sum()) for array in self.arrays]  # have every page
        return psutil.Process().memory_full_info().uss - before

    def write(self):
        self.arrays[0][...] = 0

    def mine(self, array):
        return array.copy()


def read(engine):
    return engine.call("read", call_method, "read", env_ids=range(engine.num_envs))


@pytest.mark.parametrize("method", [*START_METHODS, None])
def test_workers_map_it_and_nobody_copies_it(method):
    """Whatever view of it a factory holds: the values, and no memory of the worker's own."""
    whole = fastvec.shared(np.arange(5 * MB, dtype=np.float64).reshape(5, -1))
    assert whole.sum() > 0  # a shared page that only one process has mapped yet would count as private
    views = [whole, whole[1:3], whole[::-1, 5], whole.T[7], whole[2, 3:3]]
    options = {"start_method": method, "num_workers": 2} if method else {"num_workers": 0}
    engine = make_engine([functools.partial(ReadingEnv, i, *views) for i in range(3)], **options)
    reset(engine)
    if method:
        assert max(engine.call("grows", call_method, "grows", env_ids=[0, 2])) < 5 * MB  # of 40
    for told in read(engine):
        assert_same([values for values, *_ in told], [view.copy() for view in views])
        assert [writeable for _, writeable, *_ in told] == [False] * 4 + [told[4][1]]
    engine.close()
    with pytest.raises(ValueError, match="read-only"):
        whole[0, 0] = 1


@pytest.mark.parametrize("method", START_METHODS)
def test_nobody_can_write_into_it(method):
    """An environment that tries has its error; the values stay."""
    array = fastvec.shared(np.ones(4))
    engine = make_engine([functools.partial(ReadingEnv, i, array) for i in range(2)], start_method=method)
    with pytest.raises(ValueError, match="read-only"):
        engine.call("write", call_method, "write", env_ids=[1])
    engine.close()
    assert array.tolist() == [1] * 4


@pytest.mark.parametrize("options", [{"on_failure": "restart"}, {"max_episodes_per_worker": 1}])
def test_later_workers_have_it_too(options):
    """Also when the program has no array of it any more."""
    fns = [functools.partial(ReadingEnv, i, fastvec.shared(np.full(3, i))) for i in range(2)]
    engine = make_engine(fns, start_method="forkserver", num_workers=1, **options)
    del fns
    gc.collect()
    reset(engine)
    (pid,) = {worker.process.pid for worker in engine._pool.workers}
    if "on_failure" in options:
        os.kill(pid, 9)
        engine.send(np.zeros(2, np.int64))
        engine.recv()
    else:
        reset(engine)
    assert engine._pool.workers[0].process.pid != pid
    assert [told[0][0].tolist() for told in read(engine)] == [[0] * 3, [1] * 3]
    engine.close()
    gc.collect()
    assert not SharedMemory.known


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_view_of_any_array_arrives_as_it_went(data):
    """Pickled, its memory sent beside: equal values, dtype, shape and strides, and the same memory."""
    dtypes = st.one_of(npst.scalar_dtypes(), npst.unicode_string_dtypes(), npst.array_dtypes())
    values = data.draw(npst.arrays(dtypes, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
    array = fastvec.shared(values)
    assert array.dtype == values.dtype
    assert array.tobytes() == np.ascontiguousarray(values).tobytes()
    assert not array.flags.writeable
    view = array[data.draw(npst.basic_indices(array.shape, allow_ellipsis=True))] if array.ndim else array
    data_, memories = SharingPickler.dumps((view, "and", np.arange(3)))
    with received([os.dup(memory.fd) for memory in memories]):
        again, _, copied = pickle.loads(data_)
    assert (again.shape, again.tobytes()) == (view.shape, view.tobytes())
    assert copied.tolist() == [0, 1, 2]
    if isinstance(view, np.ndarray) and view.size and view.nbytes:
        assert len(memories) == 1
        assert (again.dtype, again.strides) == (view.dtype, view.strides)
        assert not again.flags.writeable


def test_its_memory_goes_with_the_last_array():
    """No name, no descriptor and no memory is left."""
    before = len(os.listdir("/proc/self/fd"))
    array = fastvec.shared(np.zeros(20 * MB, np.uint8))
    part = array[5:]
    del array
    gc.collect()
    assert len(SharedMemory.known) == 1
    assert len(os.listdir("/proc/self/fd")) > before
    del part
    gc.collect()
    assert not SharedMemory.known
    assert len(os.listdir("/proc/self/fd")) == before


def test_arguments_of_calls_are_copies():
    """They are pickled like any array, there and back."""
    array = fastvec.shared(np.arange(4))
    engine = make_engine([functools.partial(ReadingEnv, i) for i in range(2)], start_method="forkserver")
    (back,) = engine.call("mine", call_method, "mine", array, env_ids=[0])
    assert back.tolist() == [0, 1, 2, 3]
    engine.close()


@pytest.mark.parametrize("method", START_METHODS)
def test_workers_that_are_killed_leave_nothing_of_it(method):
    """Its memory is the kernel's to give back."""
    program = (
        "import functools, os, signal, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "import numpy as np, fastvec\n"
        "from test_sharing import ReadingEnv\n"
        "array = fastvec.shared(np.ones(1000))\n"
        "venv = fastvec.SharedMemVectorEnv([functools.partial(ReadingEnv, i, array) for i in range(2)],\n"
        "    num_workers=2, start_method=sys.argv[1])\n"
        "venv.reset()\n"
        "print(*(worker.process.pid for worker in venv._engine._pool.workers), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    before = set(os.listdir("/dev/shm"))
    here = os.path.dirname(__file__)
    done = subprocess.run([sys.executable, "-c", program, method, here], capture_output=True, text=True, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    assert eventually(lambda: gone(pids))
    assert set(os.listdir("/dev/shm")) == before


def test_what_cannot_be_shared():
    """Objects; more than the memory there is; more arrays than one message takes."""
    with pytest.raises(TypeError, match="arrays of numbers and text, got one of Python objects"):
        fastvec.shared(np.array([None, {}]))
    with pytest.raises(errors.SharedMemoryError, match="no room for a shared copy of an array of 1,125,"):
        fastvec.shared(np.broadcast_to(np.uint8(0), (1 << 50,)))
    arrays = [fastvec.shared(np.full(1, i)) for i in range(201)]
    with pytest.raises(errors.FactoryError, match="201 shared arrays, and at most 200 are possible"):
        make_engine([functools.partial(ReadingEnv, 0, *arrays)], start_method="forkserver", num_workers=1)
    engine = make_engine([functools.partial(ReadingEnv, 0, *arrays[:200])], start_method="spawn", num_workers=1)
    assert [values[0] for values, *_ in read(engine)[0]] == list(range(200))
    engine.close()


def test_it_takes_lists_and_text():
    """As np.asarray does."""
    assert fastvec.shared([1, 2]).tolist() == [1, 2]
    assert fastvec.shared(["a", "bc"]).tolist() == ["a", "bc"]
    assert fastvec.shared(3.5) == 3.5
