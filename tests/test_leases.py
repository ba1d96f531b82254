"""With copy=False: what is handed out is memory that environments write to, and never changes while it is alive."""

from __future__ import annotations

import copy
import functools
import gc
import os
import pickle
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from engines import make_engine, reset
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lending import GARBAGE, lend_everything
from test_engine import SPACES, assert_same
from test_recycling import Mode
from toys import ConstantEnv, CountingEnv, FailingOnceEnv, KilledOnceEnv, SampledEnv, SpaceEnv, StreamEnv

from fastvec import SharedMemVectorEnv, errors
from fastvec._core import leases
from fastvec._env_access import get_attr

WAYS = {"serial": {"num_workers": 0}, "1 worker": {"num_workers": 1}, "2 workers": {"num_workers": 2}}


@pytest.fixture(autouse=True)
def lent_and_spoilt(monkeypatch):
    lend_everything(monkeypatch)


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def counting(n=3, horizon=None, **options):
    return make_engine([functools.partial(CountingEnv, i, horizon) for i in range(n)], copy=False, **options)


def step(engine):
    engine.send(np.zeros(engine.num_envs, np.int64))
    return engine.recv()


def is_lent(array):
    return array.base is not None


def arrays_of(observations):
    if isinstance(observations, dict):
        return [array for value in observations.values() for array in arrays_of(value)]
    if isinstance(observations, tuple):
        return [array for value in observations for array in arrays_of(value)]
    return [observations]


# ---------------------------------------------------------------- arrays


def test_a_lent_array_looks_like_any_other(way):
    """Type, shape, dtype and flags are those of a copy, and it can be pickled, copied and written to."""
    engine = counting(**way)
    array = reset(engine).observations
    assert is_lent(array)
    assert type(array) is np.ndarray
    assert (array.shape, array.dtype) == ((3, 3), np.float32)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.flags.aligned
    for twin in (pickle.loads(pickle.dumps(array)), copy.deepcopy(array), array.copy()):
        assert_same(twin, np.array([[i, 0, 0] for i in range(3)], np.float32))
        assert not np.shares_memory(twin, array)
    array += 1
    step(engine)
    assert array.tolist() == [[i + 1, 1, 1] for i in range(3)]
    engine.close()


def test_an_array_that_is_alive_keeps_its_values(way):
    """Whatever number of batches is held: those for which there is no bank are copies."""
    engine = counting(**way)
    held = [reset(engine).observations, *(step(engine).observations for _ in range(9))]
    for count, array in enumerate(held):
        assert array.tolist() == [[i, 0, count] for i in range(3)]
    assert [is_lent(array) for array in held] == [True] * (leases.BANKS - 1) + [False] * (len(held) - leases.BANKS + 1)
    engine.close()


def test_a_learner_that_holds_one_batch_is_never_given_a_copy(way):
    """Nor one that holds two while the next is written. The memory is used again, and no more of it than is needed."""
    for holds in (1, 2):
        engine = counting(**way)
        held, addresses = [reset(engine).observations], set()
        for _ in range(20):
            held = [*held, step(engine).observations][-holds:]
            addresses.add(held[-1].ctypes.data)
            assert all(map(is_lent, held))
        assert len(addresses) == holds + 1
        engine.close()


def test_a_bank_comes_back_with_the_last_that_was_made_from_it(way):
    """Views, transposes, reshaped arrays and tensors keep it, each alone."""
    torch = pytest.importorskip("torch")
    made_from = [
        lambda a: a[1:],
        lambda a: a.T,
        lambda a: a.reshape(-1)[::2],
        lambda a: a.view(np.uint8),
        lambda a: memoryview(a),
        lambda a: np.asarray(a)[None],
        lambda a: torch.from_numpy(a),
        lambda a: torch.as_tensor(a).transpose(0, 1)[1:],
        lambda a: np.lib.stride_tricks.sliding_window_view(a, 2, 0),
        lambda a: list(a),
    ]
    for make in made_from:
        engine = counting(**way)
        made = make(reset(engine).observations)
        values = copy.deepcopy(made) if not isinstance(made, memoryview) else made.tobytes()
        for _ in range(5):
            step(engine)
        if isinstance(made, memoryview):
            assert made.tobytes() == values
        else:
            assert np.array_equal(np.asarray(made), np.asarray(values))
        assert engine._banks._lent.count(True) == 1
        del made
        assert engine._banks._lent.count(True) == 0
        engine.close()


def test_all_leaves_of_a_batch_are_one_lease(way):
    """Any leaf of a Dict or Tuple keeps all of them; leaves without a shape are objects as ever."""
    engine = make_engine([functools.partial(SpaceEnv, SPACES["nested"], i) for i in range(3)], copy=False, **way)
    observations = reset(engine, seed=3).observations
    leaf, values = observations["inner"][1], copy.deepcopy(observations["inner"][1])
    assert [is_lent(array) for array in arrays_of(observations)] == [True, True, False]
    del observations
    engine.send(np.zeros((3, 2), np.float32))
    assert engine._banks._lent.count(True) == 1
    engine.recv()
    assert_same(leaf, values)
    engine.close()


def test_threads_may_hold_and_drop_batches(way):
    """The last of a batch may go in any thread."""
    engine = counting(**way)
    reset(engine)
    wrong = []

    def hold(array, count, event):
        event.wait(0.001 * (count % 3))
        if array[:, 2].tolist() != [count] * 3:
            wrong.append(array)

    threads = []
    for count in range(1, 200):
        thread = threading.Thread(target=hold, args=(step(engine).observations, count, threading.Event()))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    assert wrong == []
    engine.close()


def test_what_is_small_is_copied(monkeypatch):
    """Below some size a copy is faster than keeping account of a lease."""
    monkeypatch.setattr(leases, "LEAST_BYTES", 1 << 15)
    for pixels, banks in ((1 << 13, 1), (1 << 14, leases.BANKS)):
        space = spaces.Box(0, 255, (pixels,), np.uint8)
        engine = make_engine([functools.partial(ConstantEnv, space, None)] * 2, copy=False, num_workers=1)
        assert engine._views.layout.banks == banks
        assert is_lent(reset(engine).observations) == (banks > 1)
        engine.close()


def test_with_copies_there_is_one_bank(way):
    """The layout is that of old, and no array is lent."""
    engine = make_engine([functools.partial(CountingEnv, 0)], **way)
    assert engine._banks._views.layout.banks == 1
    assert not is_lent(reset(engine).observations)
    engine.close()


def test_garbage_is_what_whoever_looks_without_a_lease_finds(way):
    """So that the other tests prove something: an address alone keeps nothing."""
    engine = counting(**way)
    array = reset(engine).observations
    bank = engine._banks.current
    del array
    held = step(engine).observations, step(engine).observations
    assert (engine._banks._views.bank_bytes[bank] == GARBAGE).all() or is_lent(held[1])
    engine.close()


def test_no_lease_without_a_leaf_of_a_fixed_shape(way):
    """Where all observations travel as objects there is nothing to lend."""
    engine = make_engine([functools.partial(StreamEnv, "text", i) for i in range(3)], copy=False, **way)
    reset(engine, seed=1)
    assert engine._banks._views.layout.banks == 1
    engine.close()


# ---------------------------------------------------------------- any schedule


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_schedule_is_the_same_with_leases(data):
    """Steps, resets of all and of some, calls, dropped steps, batches that are held and let go: nothing differs."""
    envs = data.draw(st.integers(1, 5), label="envs")
    mode = data.draw(st.sampled_from(list(Mode)), label="mode")
    kind = data.draw(st.sampled_from(["box", "dict"]), label="kind")
    workers = data.draw(st.integers(0, 3), label="workers")
    recycled = {"max_episodes_per_worker": data.draw(st.integers(1, 8))} if workers and data.draw(st.booleans()) else {}
    fns = [functools.partial(StreamEnv, kind, i) for i in range(envs)]
    one = make_engine(fns, num_workers=0, autoreset_mode=mode)
    two = make_engine(fns, num_workers=workers, autoreset_mode=mode, copy=False, **recycled)
    both = one, two
    held = []
    try:
        results = [reset(engine, seed=1) for engine in both]
        ended = np.zeros(envs, bool)
        for _ in range(data.draw(st.integers(1, 25), label="commands")):
            assert_same(*results)
            held.append((results[1].observations, copy.deepcopy(results[0].observations)))
            results = None
            let_go = data.draw(st.sets(st.integers(0, len(held) - 1)), label="let go")
            held = [one for index, one in enumerate(held) if index not in let_go]
            command = data.draw(st.sampled_from(["step"] * 6 + ["reset", "masked", "drop", "amid"]))
            if command == "reset":
                results = [reset(engine) for engine in both]
                ended[:] = False
            elif command == "masked" or (mode is Mode.DISABLED and ended.any()):
                mask = ended if mode is Mode.DISABLED and ended.any() else np.arange(envs) % 2 == 0
                for engine in both:
                    engine.send_reset([{} for _ in range(envs)], mask.copy())
                results = [engine.recv_reset() for engine in both]
                ended &= ~mask
            elif command == "drop" and workers:
                two.send(np.zeros(envs, np.int64))
                step(one)
                results = [reset(engine, seed=2) for engine in both]
                ended[:] = False
            else:
                for engine in both:
                    engine.send(np.zeros(envs, np.int64))
                if command == "amid":
                    for engine in both:
                        engine.call("pid", get_attr, "kind", env_ids=[0])
                results = [engine.recv() for engine in both]
                ended |= np.frombuffer(results[0].flags, np.uint8) & 3 != 0
            for lent, expected in held:
                assert_same(lent, expected)
        assert_same(*results)
    finally:
        one.close()
        two.close()
    for lent, expected in held:
        assert_same(lent, expected)


@pytest.mark.parametrize("name", SPACES)
def test_every_space_is_the_same_with_leases(name, way):
    """Whatever the observation is made of: values, dtypes and types are those of copies."""
    fns = [functools.partial(SpaceEnv, SPACES[name], i) for i in range(3)]
    found = []
    for options in ({"num_workers": 0}, {"copy": False, "check_nan": True, **way}):
        engine = make_engine(fns, **options)
        rng = np.random.default_rng(0)
        trace = [reset(engine, seed=5)]
        for _ in range(15):
            engine.send(rng.uniform(-1, 1, (3, 2)).astype(np.float32))
            trace.append(engine.recv())
        engine.close()
        found.append(trace)
    assert_same(*found)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_worker_that_is_replaced_leaves_leases_alone(mode, tmp_path):
    """The last observation that is shown for a lost worker, and the first one after it, are those of copies."""
    flag = tmp_path / "failed"
    space, action = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)

    def run(**options):
        flag.unlink(missing_ok=True)
        fns = [functools.partial(SampledEnv, space, action, i) for i in range(4)]
        fns[1] = functools.partial(KilledOnceEnv, str(flag), 8, space, action, 1)
        options |= {"on_failure": "restart", "in_series": 2, "start_method": "fork"}
        with SharedMemVectorEnv(fns, autoreset_mode=mode, **options) as venv:
            found = [venv.reset(seed=5)[0]]
            kept = [found[0].copy()]
            for _ in range(20):
                found.append(venv.step([0, 1, 2, 0])[0])
                kept.append(found[-1].copy())
                if mode is AutoresetMode.DISABLED and venv._ended.any():
                    found.append(venv.reset(options={"reset_mask": venv._ended.copy()})[0])
                    kept.append(found[-1].copy())
        assert_same(found, kept)
        return found

    assert_same(run(copy=False), run(copy=True))


@pytest.mark.parametrize("where", ["method", "reset", "step"])
@pytest.mark.parametrize("mode", list(Mode))
def test_a_worker_may_be_lost_at_any_time(where, mode, tmp_path):
    """In a call, in a reset of some, in a step: batches that are held stay, and later ones are those of copies."""
    found = []
    for lend in (False, True):
        flag = str(tmp_path / f"failed-{lend}")
        fns = [functools.partial(FailingOnceEnv, i, flag, "", "SIGKILL") for i in range(5)]
        engine = make_engine(fns, num_workers=2, on_failure="restart", copy=not lend, autoreset_mode=mode)
        held = [reset(engine).observations, step(engine).observations]
        engine.call("where", _fail_next, where, env_ids=[1])
        if where == "method":
            with pytest.raises(errors.WorkerDiedError):
                engine.call("method", _method, env_ids=[1])
        for chosen in ([0, 1], [2, 4]):
            mask = np.isin(np.arange(5), chosen)
            engine.send_reset([{}] * 5, mask)
            held.append(engine.recv_reset().observations)
            held.extend(step(engine).observations for _ in range(3))
        kept = [array.copy() for array in held]
        step(engine)
        reset(engine)
        assert_same(held, kept)
        found.append(held)
        engine.close()
    assert_same(*found)


def _fail_next(env, where):
    env.where, env.at = where, env.count + 1


def _method(env):
    return env.method()


# ---------------------------------------------------------------- ends


def mappings():
    return sum("/memfd:fastvec" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_arrays_outlive_close(way):
    """They stay readable and writable, and the memory goes with the last of them."""
    gc.collect()
    before = mappings()
    engine = counting(**way)
    first, second = reset(engine).observations, step(engine).observations
    engine.close()
    del engine
    gc.collect()
    assert first[:, 2].tolist() == [0] * 3
    assert mappings() == before + bool(way["num_workers"])
    del first
    second += 1
    assert second[:, 2].tolist() == [2] * 3
    assert mappings() == before + bool(way["num_workers"])
    del second
    assert mappings() == before


def test_without_arrays_the_memory_goes_with_close():
    """Nothing that keeps account of leases keeps the block."""
    gc.collect()
    before = mappings()
    engine = counting()
    step(engine)
    gc.disable()
    try:
        engine.close()
        assert mappings() == before
    finally:
        gc.enable()


def test_arrays_outlive_the_death_of_a_worker():
    """What was handed out before stays as it was."""
    engine = counting()
    held = reset(engine).observations, step(engine).observations
    os.kill(engine._pool.workers[0].process.pid, signal.SIGKILL)
    with pytest.raises(errors.WorkerDiedError):
        step(engine)
    engine.close()
    for count, array in enumerate(held):
        assert array[:, 2].tolist() == [count] * 3


def test_a_late_step_writes_where_nobody_looks():
    """After a timeout the step that is dropped comes to its end in a bank of its own."""
    from toys import SleepyEnv

    fns = [functools.partial(SleepyEnv, i, 2, 0.3 * (i == 1)) for i in range(3)]
    engine = make_engine(fns, copy=False, num_workers=3)
    held = [reset(engine).observations, step(engine).observations]
    engine.send(np.zeros(3, np.int64))
    with pytest.raises(errors.WorkerTimeoutError):
        engine.recv(timeout=0.01)
    assert held[1][:, 2].tolist() == [1] * 3
    held.append(reset(engine).observations)
    assert [array[:, 2].tolist() for array in held] == [[0] * 3, [1] * 3, [0] * 3]
    engine.close()


class InterruptedEnv(CountingEnv):
    """Ctrl-C comes amid its second step, once."""

    interrupt = True

    def step(self, action):
        if self.count == 1 and self.interrupt:
            self.interrupt = False
            raise KeyboardInterrupt
        return super().step(action)


def test_an_interrupt_amid_the_environments_loses_no_row():
    """Without workers: who was stepped shows it, and who was not shows what was shown before."""
    fns = [functools.partial(InterruptedEnv if i == 1 else CountingEnv, i) for i in range(3)]
    engine = make_engine(fns, copy=False, num_workers=0)
    held = [reset(engine).observations, step(engine).observations]
    engine.send(np.zeros(3, np.int64))
    with pytest.raises(KeyboardInterrupt):
        engine.recv()
    engine.send_reset([{}] * 3, np.array([False, False, True]))
    assert engine.recv_reset().observations.tolist() == [[0, 0, 2], [1, 0, 1], [2, 1, 0]]
    assert [array[:, 2].tolist() for array in held] == [[0] * 3, [1] * 3]
    engine.close()


# ---------------------------------------------------------------- forks


def exit_code_of_child(function):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = int(function())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_what_a_forked_child_inherits_stays_as_it_was():
    """The parent drops the batch and goes on; the bank that the child looks at is used no more."""
    engine = counting()
    inherited = reset(engine).observations
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.read(read, 1)  # until the parent has gone on
            os._exit(int(inherited[:, 2].tolist() != [0] * 3))
        finally:
            os._exit(2)
    del inherited
    steps = [step(engine).observations.copy() for _ in range(10)]
    os.write(write, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(read)
    os.close(write)
    assert [array[:, 2].tolist() for array in steps] == [[count] * 3 for count in range(1, 11)]
    engine.close()


def test_after_many_forks_batches_are_copied():
    """At worst all banks but one are the children's."""
    engine = counting()
    held = [reset(engine).observations]
    for count in range(1, 6):
        assert exit_code_of_child(lambda: held[-1][:, 2].tolist() != [count - 1] * 3) == 0  # noqa: B023
        held = [step(engine).observations]
        assert held[0][:, 2].tolist() == [count] * 3
    assert not is_lent(held[0])
    engine.close()


def test_a_worker_that_is_forked_takes_no_bank():
    """Successors of workers look at nothing that they inherit."""
    fns = [functools.partial(StreamEnv, "box", i) for i in range(4)]
    engine = make_engine(fns, copy=False, max_episodes_per_worker=1)
    reset(engine, seed=0)
    for _ in range(30):
        observations = step(engine).observations
        assert is_lent(observations)
    engine.close()


# ---------------------------------------------------------------- splits


def test_splits_lend_each_on_its_own(way):
    """What a split returns stays as it is while others step, and what the whole has returned before stays, too."""
    with SharedMemVectorEnv(
        [functools.partial(CountingEnv, i) for i in range(4)], copy=False, start_method="fork", **way
    ) as venv:
        held = [venv.reset()[0], venv.step([0] * 4)[0]]
        one, two = venv.split(2)
        mask = np.array([True, False])
        held.append(one.reset(options={"reset_mask": mask})[0])
        held.extend(split.step([0] * 2)[0] for split in (one, two, one, two))
        kept = [array.copy() for array in held]
        for _ in range(5):
            for split in (one, two):
                split.step([0] * 2)
        assert all(map(is_lent, held[:3]))
        assert_same(held, kept)
        assert held[2][:, 2].tolist() == [0, 1]
        assert held[3][:, 2].tolist() == [1, 2]
