"""``with_step``: values that come with each step, and what it takes for them to be asked for again."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import signal
import threading

import gymnasium
import numpy as np
import pytest
from engines import make_engine, reset
from gymnasium.vector import AutoresetMode as VectorMode
from gymnasium.vector import SyncVectorEnv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import CountingEnv, StreamEnv

from fastvec import SharedMemVectorEnv, errors
from fastvec._core.config import AutoresetMode
from fastvec._env_access import call_method, get_attr, set_attr

WORKERS = (0, 1, 2)


class TellingEnv(StreamEnv):
    """Tells what follows from where it is, in many types, and how often it was asked."""

    def __init__(self, env_id, kind="box", broken_at=None):
        super().__init__(kind, env_id)
        self.left, self.asked, self.tag, self.broken_at = 0, 0, None, broken_at
        self.lock = threading.Lock()
        self.inner = {"list": [1, 2.0, "three"], "none": None}

    def mask(self):
        return np.arange(5) < self.left + self.env_id

    def big(self):
        return np.full((40, 40), self.left, np.int32)

    def number(self):
        return np.float32(self.left) if self.env_id % 2 else self.left

    def text(self):
        return f"{self.left} left" if self.left % 2 else None

    def seen(self):
        self.asked += 1
        return self.asked

    def failing(self):
        if self.left == self.broken_at:
            raise KeyError("no mask")
        return True

    def shift(self, by):
        return self.left + by

    @property
    def both(self):
        return self.env_id, np.array([self.left])


NAMES = ["mask", "big", "number", "text", "both", "left", "inner"]
METHODS = {"mask", "big", "number", "text"}


def key_of(name):
    return f"{name}()" if name in METHODS else name


def factories(n, **options):
    return [functools.partial(TellingEnv, i, **options) for i in range(n)]


@pytest.fixture
def engine_of():
    """Makes engines, which are closed in the end; each counts the calls that it sends in ``calls``."""
    with contextlib.ExitStack() as stack:

        def make(n, **options):
            engine = make_engine(factories(n, **options.pop("env_options", {})), **options)
            stack.callback(engine.close)
            return counting(engine)

        yield make


def counting(engine):
    """The engine, which keeps the names of the calls that it sends."""
    send, engine.calls = engine._start_call, []
    engine._start_call = lambda call: (engine.calls.append(call.name), send(call))[1]
    return engine


def asked(engine, name):
    """The values, by a call to every environment."""
    function = call_method if name in METHODS else get_attr
    return engine.call(name, function, name, env_ids=range(engine.num_envs))


def same(one, other):
    """Equal in values and in types, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    return bool(one == other)


def step(engine):
    return engine_step(engine).observations


def engine_step(engine):
    engine.send(np.zeros(engine.num_envs, np.int64))
    return engine.recv()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_values_are_those_of_a_call_after_every_step(data):
    """Whatever the names, workers, kind of observations and autoreset mode: equal to a call, in types too."""
    n, workers = data.draw(st.integers(1, 5)), data.draw(st.sampled_from(WORKERS))
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=len(NAMES), unique=True))
    mode, kind = data.draw(st.sampled_from(AutoresetMode)), data.draw(st.sampled_from(["box", "text", "dict"]))
    engine = counting(make_engine(factories(n, kind=kind), num_workers=workers, with_step=names, autoreset_mode=mode))
    try:
        reset(engine, data.draw(st.integers(0, 1000)))
        for _ in range(12):
            env_ids = data.draw(st.lists(st.integers(0, n - 1), max_size=n, unique=True))
            engine.calls.clear()
            known = {name: engine.came_along([key_of(name)], env_ids) for name in names}
            assert engine.calls == []
            for name, values in known.items():
                assert same(values, [asked(engine, name)[env_id] for env_id in env_ids])
            step(engine)
    finally:
        engine.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_value_is_taken_once_a_step_and_belongs_to_the_observation_that_is_returned(engine_of, workers):
    """A reset and each step ask once, after the autoreset; so the method and the info of the same moment agree."""
    engine = engine_of(3, num_workers=workers, with_step=["seen", "left"])
    reset(engine, 1)
    assert engine.came_along(["seen()"], range(3)) == [1, 1, 1]
    for count in range(2, 9):
        step(engine)
        assert engine.came_along(["seen()"], range(3)) == [count] * 3
        # An ended episode has been reset: at least one step is left of the next.
        assert min(engine.came_along(["left"], range(3))) >= 1


@pytest.mark.parametrize("workers", WORKERS)
def test_values_are_fresh_and_the_callers_to_change(engine_of, workers):
    """Two answers share nothing, and nothing in them changes with the next step."""
    engine = engine_of(2, num_workers=workers, with_step=["mask", "inner"])
    reset(engine, 1)
    one, other = (engine.came_along(["mask()"], [0, 1]) for _ in range(2))
    one[0][:] = True
    assert engine.came_along(["mask()"], [1, 0, 1]) is None
    assert same(other, asked(engine, "mask"))
    step(engine)
    before = engine.came_along(["inner"], [0])[0]
    before["list"].clear()
    assert engine.came_along(["inner"], [0])[0]["list"] == [1, 2.0, "three"]


@pytest.mark.parametrize("workers", WORKERS)
def test_whatever_happens_since_makes_it_a_call_again(engine_of, workers):
    """After a call, a reset of some, or a step that nobody has received, nothing is known; after a step it is again."""
    engine = engine_of(2, num_workers=workers, with_step=["tag"])
    assert engine.came_along(["tag"], [0]) is None
    reset(engine, 1)
    assert engine.came_along(["tag"], [0]) == [None]
    engine.call("set_attr", set_attr, "tag", "new", env_ids=[0])
    assert engine.came_along(["tag"], [0, 1]) is None
    step(engine)
    assert engine.came_along(["tag"], [0, 1]) == ["new", None]
    engine.send_reset([{}] * 2, np.array([True, False]))
    engine.recv_reset()
    assert engine.came_along(["tag"], [0, 1]) is None
    step(engine)
    engine.send_call("tag", get_attr, "tag", env_ids=[1])
    assert engine.came_along(["tag"], [0, 1]) is None
    assert engine.recv_call() == [None]
    step(engine)
    engine.send(np.zeros(2, np.int64))
    engine.drop()
    assert engine.came_along(["tag"], [0, 1]) is None


@pytest.mark.parametrize("workers", WORKERS)
def test_while_a_step_is_pending_it_is_received_first(engine_of, workers):
    """As a call does, the question waits for the step, which is received afterwards as ever."""
    engine = engine_of(2, num_workers=workers, with_step=["seen"])
    reset(engine, 1)
    engine.send(np.zeros(2, np.int64))
    assert engine.came_along(["seen()"], [1]) == [2]
    assert engine.recv().observations.shape == (2, 2)
    assert engine.came_along(["seen()"], [1]) == [2]


@pytest.mark.parametrize("workers", WORKERS)
def test_after_the_end_nothing_is_known(engine_of, workers):
    """Closed environments have no values, and say so when called."""
    engine = engine_of(2, num_workers=workers, with_step=["mask"])
    reset(engine, 1)
    engine.close()
    assert engine.came_along(["mask()"], [0]) is None
    with pytest.raises(errors.ClosedError):
        asked(engine, "mask")


@pytest.mark.parametrize("workers", WORKERS)
def test_what_a_method_raises_is_raised_by_the_step(engine_of, workers):
    """Like an error in step(): its own type, with who and where as the cause."""
    engine = engine_of(3, num_workers=workers, with_step=["failing"], env_options={"broken_at": 2})

    def run():
        for seed in range(50):
            reset(engine, seed)
            for _ in range(6):
                step(engine)

    with pytest.raises(KeyError, match="no mask") as caught:
        run()
    assert "in failing: 'no mask'" in str(caught.value.__cause__)
    with pytest.raises(errors.BrokenError):
        step(engine)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["masks"], "with_step names 'masks', and env [01] has no such method or attribute once it is built"),
        (["shift"], r"env [01] is called as shift\(by\): name a method without arguments"),
        ("mask", "with_step must be a sequence of names such as"),
        (["mask", 3], "with_step must be a sequence of names such as"),
        (["step"], "with_step must name methods and attributes to be read after each step, got 'step'"),
    ],
)
def test_wrong_names_are_said_by_the_constructor(workers, names, text):
    """Also those that only the environments can know of."""
    with pytest.raises(errors.ConfigError, match=text):
        make_engine(factories(2), num_workers=workers, with_step=names)


def test_a_value_that_cannot_be_sent_is_named():
    """The error says which of the values it is."""
    engine = make_engine(factories(2), num_workers=1, with_step=["mask", "lock"])
    with pytest.raises(errors.InfoError, match=r"with_step\['lock'\] cannot be sent to the parent process"):
        reset(engine, 1)
    engine.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_it_goes_on_through_changes_of_workers(mode):
    """While workers are recycled values stay those of a call."""
    options = {"num_workers": 2, "with_step": ["mask", "text", "left"], "autoreset_mode": mode}
    if mode is not AutoresetMode.DISABLED:
        options["max_episodes_per_worker"] = 5
    engine = make_engine(factories(5), **options)
    try:
        reset(engine, 3)
        pids = set()
        for _ in range(60):
            known = {name: engine.came_along([key_of(name)], range(5)) for name in ("mask", "text", "left")}
            for name, values in known.items():
                assert same(values, asked(engine, name))
            pids.update(engine.call("pid", call_method, "pid", env_ids=range(5)))
            step(engine)
        assert len(pids) > 2 or mode is AutoresetMode.DISABLED
    finally:
        engine.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_replaced_worker_has_nothing_to_tell_of_the_step_that_it_missed(mode):
    """Its environments begin anew; what they would tell is asked for by a call, and comes along again with the next."""
    options = {"num_workers": 2, "with_step": ["left", "text"], "autoreset_mode": mode, "on_failure": "restart"}
    engine = make_engine(factories(4), **options)
    try:
        reset(engine, 1)
        (pid,) = engine.call("pid", call_method, "pid", env_ids=[3])
        os.kill(pid, signal.SIGKILL)
        infos = engine_step(engine).infos
        assert [env_id for env_id, info in enumerate(infos) if "worker_restarted" in info] == [2, 3]
        assert engine.came_along(["left"], range(4)) is None
        for _ in range(6):
            step(engine)
            known = [engine.came_along([key_of(name)], range(4)) for name in ("left", "text")]
            assert same(known, [asked(engine, name) for name in ("left", "text")])
    finally:
        engine.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_splits_have_what_rides_along_of_their_own(workers):
    """Each answers for its environments after its own steps, whatever another does; the whole asks by a call."""
    whole = SharedMemVectorEnv(factories(6), num_workers=workers, start_method="fork", with_step=["mask", "left"])
    try:
        whole.reset(seed=1)
        splits = whole.split(2)
        engines = [counting(split._engine) for split in splits]
        for split, engine in zip(splits, engines, strict=True):
            split.step(np.zeros(split.num_envs, np.int64))
            known = [split.call(name) for name in ("mask", "left")]
            assert engine.calls == []
            assert same(known, [tuple(asked(engine, name)) for name in ("mask", "left")])
        splits[0].step(np.zeros(splits[0].num_envs, np.int64))
        engines[0].calls.clear()
        splits[1].step(np.zeros(splits[1].num_envs, np.int64))
        assert len(splits[0].call("mask")) == splits[0].num_envs
        assert engines[0].calls == []
        assert len(whole.call("mask")) == 6
        assert engines[0].calls == ["mask"]
        splits[0].set_attr("tag", 1)
        assert splits[0].call("tag") == (1,) * splits[0].num_envs
    finally:
        whole.close()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("mode", VectorMode)
def test_the_gymnasium_class_answers_call_and_get_attr_as_ever(workers, mode):
    """Against Gymnasium's own class, step by step, without a call but for what needs one."""
    with contextlib.ExitStack() as stack:
        ours = SharedMemVectorEnv(
            factories(3), num_workers=workers, start_method="fork", autoreset_mode=mode, with_step=["mask", "left"]
        )
        stack.callback(ours.close)
        theirs = SyncVectorEnv(factories(3), autoreset_mode=mode)
        stack.callback(theirs.close)
        counting(ours._engine)
        for env in (ours, theirs):
            env.reset(seed=5)
        for _ in range(15):
            for name in ("mask", "left"):
                assert same(ours.call(name), theirs.call(name))
                assert same(ours.get_attr(name), theirs.get_attr(name))
            assert ours._engine.calls == []
            assert same(ours.call("shift", 2), theirs.call("shift", 2))
            ours._engine.calls.clear()
            terminations = [env.step(np.zeros(3, np.int64))[2:4] for env in (ours, theirs)]
            if mode is VectorMode.DISABLED:
                ended = np.logical_or(*terminations[0])
                if ended.any():
                    for env in (ours, theirs):
                        env.reset(options={"reset_mask": ended})
                    assert same(ours.call("mask"), theirs.call("mask"))
                    for env in (ours, theirs):
                        env.reset(seed=6)
                    ours._engine.calls.clear()


@pytest.mark.parametrize("workers", WORKERS)
def test_the_sb3_class_answers_env_method_and_get_attr(workers):
    """Methods by env_method, attributes by get_attr, and not the other way round."""
    pytest.importorskip("stable_baselines3")
    sb3 = importlib.import_module("fastvec.sb3")
    venv = sb3.SharedMemVecEnv(
        [functools.partial(MaskedEnv, i) for i in range(3)],
        num_workers=workers,
        start_method="fork",
        with_step=["action_masks", "count"],
    )
    try:
        venv.seed(1)
        venv.reset()
        engine = counting(venv._engine)
        for count in range(6):
            assert venv.get_attr("count", indices=[-1, 0]) == [count % 4] * 2
            masks = venv.env_method("action_masks")
            assert [mask.tolist() for mask in masks] == [[(count % 4 + i) % 2 == 0, True] for i in range(3)]
            assert venv.env_method("action_masks", indices=1)[0].tolist() == masks[1].tolist()
            assert engine.calls == []
            venv.step([0, 0, 0])
        assert len(venv.get_attr("action_masks")) == 3 if workers == 0 else True
        with pytest.raises(TypeError, match="not callable"):
            venv.env_method("count")
        venv.step([0, 0, 0])
        engine.calls.clear()
        venv.set_attr("count", 2)
        assert venv.get_attr("count") == [2, 2, 2]
        assert engine.calls == ["set_attr", "get_attr"]
    finally:
        venv.close()


class MaskedEnv(gymnasium.Wrapper):
    """Two actions, of which one is possible in every second step only."""

    def __init__(self, env_id):
        super().__init__(CountingEnv(env_id, horizon=4))
        self.env_id = env_id

    def action_masks(self):
        return np.array([(self.unwrapped.count + self.env_id) % 2 == 0, True])
