"""Large arguments of calls: they arrive as small ones do, and nothing is shared with anybody."""

from __future__ import annotations

import functools
import os

import numpy as np
import pytest
from engines import START_METHODS, eventually, make_engine
from toys import CountingEnv

from fastvec._core.bulk import pack, unpack
from fastvec._core.pickles import LARGE, dumps
from fastvec._core.splits import split_engine

N = LARGE // 8


class KeepingEnv(CountingEnv):
    """Keeps what it is given, and adds its own number to it."""

    def keep(self, *args, **kwargs):
        self.kept = [*args, *kwargs.values()]
        for array in self.kept:
            if isinstance(array, np.ndarray) and array.flags.writeable and array.dtype != object:
                array += self.env_id
        return [(a.dtype.str, a.shape, a.flags.writeable, a.flags.f_contiguous) for a in self.kept]

    def sums(self):
        return [float(np.sum(array)) for array in self.kept]

    def descriptors(self):
        return len(os.listdir("/proc/self/fd"))


def keep(env, *args, **kwargs):
    return env.keep(*args, **kwargs)


@pytest.fixture(params=START_METHODS)
def engine(request):
    engine = make_engine([functools.partial(KeepingEnv, i) for i in range(4)], start_method=request.param)
    yield engine
    engine.close()


def test_arrays_arrive_writable_and_belong_to_the_environment(engine):
    """Neither the caller's array nor that of another worker changes; those of one worker are one object, as ever."""
    large, small = np.zeros(N), np.zeros(3)
    seen = engine.call("keep", keep, large, env_ids=[0, 1, 2, 3], kwargs={"small": small})
    assert seen == [[("<f8", (N,), True, True), ("<f8", (3,), True, True)]] * 4
    assert large.sum() == small.sum() == 0
    assert engine.call("sums", KeepingEnv.sums, env_ids=[0, 1, 2, 3]) == [[1.0 * N, 3.0]] * 2 + [[5.0 * N, 15.0]] * 2


def test_every_kind_of_array_arrives_as_it_is(engine):
    """Layout, dtype, and whether it may be written, large or not; what cannot lie beside a pickle lies in it."""
    base = np.arange(4 * N, dtype=np.int32).reshape(4, N)
    frozen = base.copy()
    frozen.flags.writeable = False
    arrays = [base, np.asfortranarray(base), base[:, ::2], base.astype(">i4"), frozen, np.array([1, None] * N, object)]
    (seen,) = engine.call("keep", keep, *arrays, env_ids=[0])
    expected = [(a.dtype.str, a.shape, a.flags.writeable, a.flags.f_contiguous) for a in arrays]
    # A copy has an order of its own, whatever the array's was that it is made of.
    assert [one[:3] for one in seen] == [one[:3] for one in expected]
    assert [one[3] for one in seen[:2]] == [False, True]


def test_what_only_cloudpickle_can_send_comes_with_large_arrays(engine):
    """A lambda beside an array: the array is sent once all the same."""
    (result,) = engine.call("use", lambda env, array, f: f(array), np.ones(N), lambda a: a.sum(), env_ids=[3])
    assert result == N


def test_an_array_that_is_given_twice_is_one_array(engine):
    """As in a pickle, identity is kept."""
    array = np.ones(N)
    assert engine.call("same", lambda env, a, b: a[0] is b, [array], array, env_ids=[1, 2]) == [True, True]


def test_the_memory_goes_with_the_arrays(engine):
    """No descriptor stays in the worker, however many calls there were."""
    engine.call("keep", keep, np.zeros(N), env_ids=[0])
    before = engine.call("descriptors", KeepingEnv.descriptors, env_ids=[0])
    for _ in range(5):
        engine.call("keep", keep, np.zeros(N), np.zeros(2 * N), env_ids=[0])
    assert engine.call("descriptors", KeepingEnv.descriptors, env_ids=[0]) == before


def test_a_failing_call_leaves_nothing_open(engine):
    """The environment raises, and a value that cannot be pickled never leaves: the next call works."""

    def fail(env, array):
        raise KeyError(len(array))

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    with pytest.raises(KeyError, match=str(N)):
        engine.call("fail", fail, np.zeros(N), env_ids=[0])
    with pytest.raises(TypeError, match="pickle"):
        engine.call("keep", keep, np.zeros(N), (one for one in ()), env_ids=[0])
    assert eventually(lambda: descriptors() == before)
    assert engine.call("keep", keep, np.zeros(1), env_ids=[0]) == [[("<f8", (1,), True, True)]]


def test_splits_get_large_arrays_too():
    """Over the channels of their own."""
    whole, splits = split_engine(make_engine([functools.partial(KeepingEnv, i) for i in range(4)]), 2)
    for split in splits:
        env_ids = range(split.num_envs)
        assert split.call("keep", keep, np.zeros(N), env_ids=env_ids) == [[("<f8", (N,), True, True)]] * len(env_ids)
    assert [sums[0] for sums in whole.call("sums", KeepingEnv.sums, env_ids=range(4))] == [0, N, 2 * N, 3 * N]
    whole.close()


@pytest.mark.parametrize("missing", ["call", "refused"])
def test_without_memfds_arrays_are_in_the_pickle(monkeypatch, missing):
    """Where the system has none, or a sandbox refuses them."""
    if missing == "call":
        monkeypatch.delattr(os, "memfd_create")
    else:
        monkeypatch.setattr(os, "memfd_create", lambda *_: os.open("/nowhere/at/all", os.O_RDONLY))
    bulk, fds = pack([np.ones(N), 5], dumps)
    assert (bulk.places, fds) == ([], ())
    array, five = unpack(bulk, fds)
    assert array.sum() == N
    assert five == 5
