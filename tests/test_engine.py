"""What every engine promises, whatever it runs its environments in."""

from __future__ import annotations

import functools
import itertools
import os
import time
import warnings

import numpy as np
import pytest
from engines import START_METHODS, make_engine, reset
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import ConstantEnv, CountingEnv, SleepyEnv, SpaceEnv

from fastvec import errors
from fastvec._core.state import EngineState
from fastvec._env_access import call_method, get_attr, has_attr, set_attr
from fastvec._spaces import GymnasiumAdapter

ENGINES = {
    "serial": {"num_workers": 0},
    **{method: {"num_workers": 2, "start_method": method} for method in START_METHODS},
}


@pytest.fixture(params=ENGINES, scope="module")
def options(request):
    return ENGINES[request.param]


@pytest.fixture
def counting(options):
    """Five environments that count, with episodes of 3 steps."""
    engine = make_engine([functools.partial(CountingEnv, i, horizon=3) for i in range(5)], **options)
    yield engine
    engine.close()


def step(engine, actions=None):
    engine.send(np.zeros(engine.num_envs, np.int64) if actions is None else actions)
    return engine.recv()


def test_rows_belong_to_their_environments(counting):
    """Each row of a batch is what the environment of that index returned, in order, over several episodes."""
    result = reset(counting)
    assert result.observations.tolist() == [[i, 0, 0] for i in range(5)]
    for count in (1, 2):
        result = step(counting)
        assert result.observations.tolist() == [[i, 0, count] for i in range(5)]
        assert result.rewards.tolist() == [count] * 5
    result = step(counting)
    assert result.observations.tolist() == [[i, 1, 0] for i in range(5)]
    assert {i: final.tolist() for i, final in result.finals.items()} == {i: [i, 0, 3] for i in range(5)}
    assert result.reset_infos == {i: {"episode_number": 1} for i in range(5)}


def test_actions_reach_their_environments_with_their_types(counting):
    """An int64 batch gives np.int64 scalars, a list of ints gives ints: what a serial class would hand over."""
    reset(counting)
    infos = step(counting, np.arange(5)).infos
    assert [(info["action"], info["kind"]) for info in infos] == [(i, "int64") for i in range(5)]
    infos = step(counting, [4, 3, 2, 1, 0]).infos
    assert [(info["action"], info["kind"]) for info in infos] == [(4 - i, "int") for i in range(5)]
    infos = step(counting, np.arange(5, dtype=np.uint8)).infos
    assert [(info["action"], info["kind"]) for info in infos] == [(i, "uint8") for i in range(5)]


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        (np.zeros(4, np.int64), r"actions must have shape \(5,\), got \(4,\)"),
        (np.zeros((5, 1), np.int64), r"actions must have shape \(5,\), got \(5, 1\)"),
        (np.array([0, 0.5, 0, 0, 0]), "must be whole numbers \\(int64\\), got 0.5"),
        (np.array(["a"] * 5), "must have dtype int64 or one that casts to it, got <U1"),
        ([0, 0, 0, 0], "sequence of 5 actions, one an environment: got 4"),
        ([0, 0, [1, 2], 0, 0], r"the action of env 2 must have shape \(\), got \(2,\)"),
        (3, "an array or a sequence of 5 actions, got a int"),
    ],
)
def test_a_wrong_batch_of_actions_advances_nobody(counting, actions, text):
    """After an ActionError the next good step is every environment's first."""
    reset(counting)
    with pytest.raises(errors.ActionError, match=text):
        counting.send(actions)
    result = step(counting)
    assert result.observations[:, 2].tolist() == [1] * 5
    assert result.rewards.tolist() == [1] * 5


def test_what_a_step_returns_is_the_callers(counting):
    """Arrays of one step stay as they are over the next, and writing into them changes nothing."""
    reset(counting)
    first = step(counting)
    kept = [first.observations.copy(), first.rewards.copy()]
    second = step(counting)
    assert np.array_equal(first.observations, kept[0])
    assert np.array_equal(first.rewards, kept[1])
    second.observations[...] = -1
    second.rewards[...] += 100
    second.infos[0]["count"] = "mine"
    third = step(counting)
    assert third.rewards.tolist() == [3] * 5
    assert third.infos[0]["count"] == 3
    assert not np.shares_memory(first.observations, third.observations)


def test_calls_out_of_order_are_refused(counting):
    """Receiving without sending and sending twice are errors that change nothing."""
    reset(counting)
    with pytest.raises(errors.CallError, match="no step is pending"):
        counting.recv()
    counting.send(np.zeros(5, np.int64))
    with pytest.raises(errors.CallError, match="a step is pending already"):
        counting.send(np.zeros(5, np.int64))
    assert counting.recv().rewards.tolist() == [1] * 5


def test_a_reset_drops_a_pending_step(counting):
    """reset() between send() and recv() gives the first observations; the step's result is never seen."""
    reset(counting)
    counting.send(np.zeros(5, np.int64))
    assert reset(counting).observations.tolist() == [[i, 1, 0] for i in range(5)]
    with pytest.raises(errors.CallError):
        counting.recv()
    assert step(counting).rewards.tolist() == [1] * 5


def test_seeds_and_options_reach_reset(counting):
    """Every environment gets its own arguments, and none that are not given."""
    counting.reset(
        [{"seed": 7, "options": {"a": 1}}, {}, {"seed": 9, "options": {}}, {"options": {"b": 2}}, {"seed": 11}]
    )
    calls = counting.call("get", get_attr, "reset_calls", env_ids=range(5))
    assert [c[-1] for c in calls] == [(7, {"a": 1}), (None, None), (9, {}), (None, {"b": 2}), (11, None)]


def test_calls_come_back_in_the_order_asked_for(counting):
    """Results follow env_ids, repeats included."""
    assert counting.call("add", call_method, "add", 10, env_ids=[4, 0, 4, 2], kwargs={"b": 5}) == [19, 15, 19, 17]
    counting.call("set", set_attr, "tag", "x", env_ids=[3, 1])
    assert counting.call("has", has_attr, "tag", env_ids=range(5)) == [False, True, False, True, False]


def test_a_failing_call_leaves_everything_as_it_was(counting):
    """An AttributeError in a worker is an AttributeError here; the next step is right."""
    reset(counting)
    with pytest.raises(AttributeError, match="nope") as caught:
        counting.call("get_attr", get_attr, "nope", env_ids=range(5))
    assert isinstance(caught.value.__cause__, errors.EnvError)
    assert caught.value.__cause__.env_index == 0
    assert step(counting).rewards.tolist() == [1] * 5


def test_a_call_while_a_step_is_pending_gets_both_results(counting):
    """The step is finished first, and received afterwards."""
    reset(counting)
    counting.send(np.zeros(5, np.int64))
    counts = counting.call("get", get_attr, "env_id", env_ids=range(5))
    assert counts == list(range(5))
    assert counting.recv().rewards.tolist() == [1] * 5


def test_close_is_final_and_can_be_repeated(options):
    """After close() every use is a ClosedError, and closing again is nothing."""
    engine = make_engine([functools.partial(CountingEnv, 0)], **options)
    engine.close()
    engine.close()
    assert engine.state is EngineState.CLOSED
    for use in (lambda: reset(engine), lambda: step(engine), lambda: engine.call("x", get_attr, "x", env_ids=[0])):
        with pytest.raises(errors.ClosedError, match="have been closed"):
            use()


def test_close_with_a_pending_step(counting):
    """A step under way does not keep close() from ending."""
    reset(counting)
    counting.send(np.zeros(5, np.int64))
    counting.close()


# ---------------------------------------------------------------- observations, rewards, infos


def engine_of(observation=None, space=None, reward=0.0, info=None, **options):
    space = space or spaces.Box(-1, 1, (4,), np.float32)
    return make_engine([functools.partial(ConstantEnv, space, observation, reward, info)] * 3, **options)


@pytest.mark.parametrize(
    ("space", "observation", "text"),
    [
        (spaces.Box(-1, 1, (4,), np.float32), np.zeros(1, np.float32), r"must have shape \(4,\), got \(1,\)"),
        (spaces.Box(-1, 1, (2, 3), np.float32), np.zeros((3, 2), np.float32), r"shape \(2, 3\), got \(3, 2\)"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0.7, 300.9]), "must have dtype uint8, got float64"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([1, 300]), "values that do not fit .*300"),
        (spaces.Box(-1, 1, (2,), np.float32), ["a", "b"], "must have dtype float32"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2)), {"a": 1}, r"keys \['a', 'b'\], got the keys \['a'\]"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), (1,), "tuple of 2 elements, got 1 elements"),
    ],
)
@pytest.mark.parametrize("kind", ["serial", "fork"])
def test_an_observation_that_does_not_fit_its_space_is_an_error(kind, space, observation, text):
    """Nothing is broadcast, reinterpreted or wrapped around; the error names the environment."""
    engine = engine_of(observation, space, **ENGINES[kind])
    with pytest.raises(errors.ObservationError, match=text) as caught:
        reset(engine)
    assert caught.value.__cause__.env_index in range(3)
    engine.close()


def test_unsafe_casts_keep_numpys_own_conversion():
    """With the flag, floats are truncated into integers and wrap around, as plain assignment does."""
    engine = engine_of(np.array([0.7, 3.9]), spaces.Box(0, 255, (2,), np.uint8), num_workers=0, unsafe_casts=True)
    assert reset(engine).observations.tolist() == [[0, 3]] * 3
    engine.close()


def test_a_wider_float_is_rounded_with_one_warning():
    """float64 for a float32 space gives float32 and a single UserWarning."""
    engine = engine_of(np.full(4, 0.1), num_workers=0)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        observations = reset(engine).observations
        step(engine)
    assert "float64, but its space declares float32" in str(record[0].message)
    assert observations.dtype == np.float32
    assert observations.tolist() == [[float(np.float32(0.1))] * 4] * 3
    assert len(record) == 1
    engine.close()


@pytest.mark.parametrize("reward", [None, "1.5", [1.0, 2.0], 1 + 2j])
@pytest.mark.parametrize("kind", ["serial", "fork"])
def test_a_reward_that_is_no_number_is_an_error(kind, reward):
    """It names the environment and the type."""
    engine = engine_of(reward=reward, **ENGINES[kind])
    reset(engine)
    with pytest.raises(errors.RewardError, match=f"of type {type(reward).__name__}"):
        step(engine)
    engine.close()


@pytest.mark.parametrize("reward", [1, True, 0.1, np.float32(0.1), np.int8(-3), np.float64(1e300)])
def test_every_real_number_is_a_reward(reward):
    """Integers do not change the dtype of the batch."""
    engine = engine_of(reward=reward)
    reset(engine)
    rewards = step(engine).rewards
    assert rewards.dtype == np.float64
    assert rewards.tolist() == [float(reward)] * 3
    engine.close()


@pytest.mark.parametrize("kind", ["serial", "fork"])
def test_an_info_that_cannot_be_sent_names_its_key(kind):
    """A lock in an info is an InfoError that says which key holds it."""
    import threading

    class LockEnv(ConstantEnv):
        def step(self, action):
            return (*super().step(action)[:4], {"fine": 1, "guard": threading.Lock()})

    engine = make_engine([lambda: LockEnv(spaces.Discrete(2), None)] * 2, **ENGINES[kind])
    reset(engine)
    with pytest.raises(errors.InfoError, match=r"'guard'.*lock"):
        step(engine)
    engine.close()


def test_spaces_must_agree():
    """The error names both environments and the difference; the flag accepts bounds that differ."""
    fns = [functools.partial(ConstantEnv, spaces.Box(0, high, (2,), np.float32), None) for high in (1, 1, 1, 2)]
    for workers in (0, 1, 2):
        with pytest.raises(
            errors.SpaceMismatchError, match=r"env \d and env \d declare different observation spaces: Box\(0.0, 1.0"
        ):
            make_engine(fns, num_workers=workers)
    engine = make_engine(fns, adapter=GymnasiumAdapter(allow_space_differences=True))
    assert reset(engine).observations.shape == (4, 2)
    engine.close()
    fns[3] = functools.partial(ConstantEnv, spaces.Box(0, 1, (2,), np.float64), None)
    with pytest.raises(errors.SpaceMismatchError):
        make_engine(fns, adapter=GymnasiumAdapter(allow_space_differences=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_one_environment_object_in_two_slots_is_an_error(workers):
    """`lambda: env` would make all slots share one state."""
    env = CountingEnv(0)
    with pytest.raises(errors.DuplicateEnvError, match=r"env 0 and env 2 .* same instance"):
        make_engine([lambda: env, lambda: CountingEnv(1), lambda: env], num_workers=workers)


# ---------------------------------------------------------------- same results everywhere

SPACES = {
    "box": spaces.Box(-1, 1, (3, 2), np.float32),
    "half": spaces.Box(-1, 1, (3,), np.float16),
    "double": spaces.Box(-1, 1, (), np.float64),
    "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "int64": spaces.Box(-(2**40), 2**40, (2,), np.int64),
    "bool": spaces.Box(0, 1, (4,), np.bool_),
    "discrete": spaces.Discrete(7, start=-3),
    "multidiscrete": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multibinary": spaces.MultiBinary((2, 3)),
    "dict": spaces.Dict(z=spaces.Discrete(3), a=spaces.Box(0, 1, (2,), np.float32)),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,), np.float64)]),
    "nested": spaces.Dict(
        inner=spaces.Tuple([spaces.Dict(x=spaces.MultiBinary(2)), spaces.Discrete(4)]), text=spaces.Text(5)
    ),
    "text": spaces.Text(8),
    "graph": spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    "sequence": spaces.Sequence(spaces.Discrete(9)),
    "oneof": spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
}


def assert_same(one, two):
    """Equal in value, type, dtype and order."""
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert list(one) == list(two)
        for key in one:
            assert_same(one[key], two[key])
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            assert_same(a, b)
    elif isinstance(one, np.ndarray):
        assert one.dtype == two.dtype
        assert one.shape == two.shape
        if one.dtype == object:
            for a, b in zip(one.flat, two.flat, strict=True):
                assert_same(a, b)
        else:
            assert one.tobytes() == two.tobytes()
    else:
        assert one == two or one != one


def trace(engine, steps=25, seed=5):
    """Everything that an engine returns over some steps."""
    rng = np.random.default_rng(seed)
    found = [tuple(reset(engine, seed=seed, options={"x": 1}))]
    for _ in range(steps):
        found.append(tuple(step(engine, rng.uniform(-1, 1, (engine.num_envs, 2)).astype(np.float32))))
    engine.close()
    return found


@pytest.mark.parametrize("name", SPACES)
def test_every_space_and_info_is_the_same_in_workers(name):
    """The trace of 1, 2 and 3 forked workers over 5 environments equals that of this process, types included."""
    fns = [functools.partial(SpaceEnv, SPACES[name], i) for i in range(5)]
    expected = trace(make_engine(fns, num_workers=0))
    for workers in (1, 2, 3):
        assert_same(trace(make_engine(fns, num_workers=workers)), expected)


@pytest.mark.parametrize("method", START_METHODS)
def test_every_start_method_gives_the_same(method):
    """So do spawned workers and those of a fork server."""
    fns = [functools.partial(SpaceEnv, SPACES["nested"], i) for i in range(3)]
    expected = trace(make_engine(fns, num_workers=0))
    assert_same(trace(make_engine(fns, num_workers=2, start_method=method)), expected)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(SPACES)),
    num_envs=st.integers(1, 6),
    in_series=st.integers(1, 6),
    schedule=st.lists(st.sampled_from(["step", "step", "step", "reset", "call", "bad", "pending call"]), max_size=12),
)
def test_any_schedule_of_calls_gives_the_same_in_workers(name, num_envs, in_series, schedule):
    """Steps, resets, queries and wrong actions in any order: workers and this process answer alike."""
    fns = [functools.partial(SpaceEnv, SPACES[name], i) for i in range(num_envs)]
    engines = [
        make_engine(fns, num_workers=0),
        make_engine(fns, num_workers=None, in_series=in_series),
    ]
    actions = np.full((num_envs, 2), 0.5, np.float32)

    def do(engine, what):
        if what == "reset":
            return tuple(reset(engine, seed=3))
        if what == "call":
            return engine.call("count", get_attr, "count", env_ids=range(num_envs))
        if what == "bad":
            with pytest.raises(errors.ActionError):
                engine.send(actions[:, :1])
            return None
        engine.send(actions)
        counts = engine.call("c", get_attr, "count", env_ids=[0]) if what == "pending call" else None
        # A serial engine steps in recv(): what a query sees in between is not part of the promise.
        return (*engine.recv(), counts is None)

    try:
        for what in itertools.chain(["reset"], schedule):
            serial, workers = (do(engine, what) for engine in engines)
            assert_same(workers, serial)
    finally:
        for engine in engines:
            engine.close()


# ---------------------------------------------------------------- time limits, forks


def test_a_step_that_timed_out_can_be_received_later():
    """After a WorkerTimeoutError the next recv() is that step; no result is ever one step late."""
    engine = make_engine([functools.partial(SleepyEnv, i, 2, 0.6 * (i == 1)) for i in range(3)], num_workers=3)
    reset(engine)
    assert step(engine).rewards.tolist() == [1] * 3
    engine.send(np.zeros(3, np.int64))
    with pytest.raises(errors.WorkerTimeoutError, match=r"within 0.05 s: waiting for envs \[1\]") as caught:
        engine.recv(timeout=0.05)
    assert caught.value.env_indices == (1,)
    assert engine.recv().rewards.tolist() == [2] * 3
    assert step(engine).rewards.tolist() == [3] * 3
    engine.close()


def test_after_a_timeout_a_reset_starts_anew():
    """The late step's reply is dropped, never taken for the reset's."""
    engine = make_engine(
        [functools.partial(SleepyEnv, i, 1, 0.3) for i in range(2)], step_timeout=0.05, reset_timeout=30
    )
    reset(engine)
    engine.send(np.zeros(2, np.int64))
    with pytest.raises(errors.WorkerTimeoutError):
        engine.recv()
    assert reset(engine).observations.tolist() == [[0, 1, 0], [1, 1, 0]]
    engine.close()


def test_a_forked_child_is_told_whose_environments_these_are():
    """In a child of the process, use is refused, and neither close() nor the child's exit touches the workers."""
    engine = make_engine([functools.partial(CountingEnv, i) for i in range(2)])
    reset(engine)
    pid = os.fork()
    if pid == 0:
        try:
            step(engine)
        except errors.CallError as error:
            engine.close()
            os._exit(0 if "forked child" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert step(engine).rewards.tolist() == [1, 1]
    engine.close()


def test_a_large_reply_goes_by_the_channel(options):
    """A method's 5 MB result and 5 MB argument pass whole."""
    engine = make_engine([functools.partial(CountingEnv, i) for i in range(2)], **options)
    big = np.arange(650_000, dtype=np.float64)
    for result in engine.call("add", call_method, "add", big, env_ids=[0, 1, 1]):
        assert result.shape == big.shape
        assert result[-1] in (649_999.0, 650_000.0)
    engine.close()


def test_idle_workers_use_no_time(options):
    """Workers that wait sleep: half a second of idling costs them a few milliseconds of CPU at most."""
    if not options["num_workers"]:
        pytest.skip("no workers")
    import psutil

    engine = make_engine([functools.partial(CountingEnv, i) for i in range(2)], **options)
    reset(engine)
    processes = [psutil.Process(worker.process.pid) for worker in engine._pool.workers]

    def used():
        before = [sum(p.cpu_times()[:2]) for p in processes]
        time.sleep(0.5)
        return max(sum(p.cpu_times()[:2]) - b for p, b in zip(processes, before, strict=True))

    # Under load the system books a tick of 10 ms on whom it finds there.
    assert min(used() for _ in range(3)) < 0.1
    engine.close()
