"""The Gymnasium face: equal to SyncVectorEnv bit for bit, and right where Gymnasium errs."""

from __future__ import annotations

import functools
import multiprocessing
import warnings
from collections import OrderedDict

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_differing_spaces
from gymnasium.wrappers import vector as wrappers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_engine import SPACES, assert_same
from toys import ConstantEnv, CountingEnv, FaultyEnv, SampledEnv, SleepyEnv

from fastvec import SharedMemVectorEnv, errors, make_vec

MODES = list(AutoresetMode)
WAYS = {
    "serial": {"num_workers": 0},
    **{f"{n} workers": {"num_workers": n, "start_method": "fork"} for n in (1, 2, 3)},
    "spawn": {"num_workers": 2, "start_method": "spawn"},
    "forkserver": {"num_workers": 2, "start_method": "forkserver"},
}
#: Of toy environments, whose episodes last 3 to 6 steps.
STEPS = 60
ACTION = spaces.Box(-1, 1, (2,), np.float32)


@pytest.fixture(params=["serial", "2 workers"])
def way(request):
    return WAYS[request.param]


def counting(n=3, horizon=None, **options):
    return SharedMemVectorEnv([functools.partial(CountingEnv, i, horizon) for i in range(n)], **options)


def trace(venv, steps, seed=3):
    """Everything that a vector environment returns, with a reset of those that ended where nobody else resets them."""
    venv.action_space.seed(seed)
    found = [venv.reset(seed=seed, options={"x": 1})]
    for step in range(steps):
        found.append(venv.step(venv.action_space.sample()))
        ended = found[-1][2] | found[-1][3]
        if venv.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            found.append(venv.reset(seed=step, options={"reset_mask": ended, "y": 2}))
    venv.close()
    return found


@functools.lru_cache
def sync_trace(env_id, mode, steps):
    return trace(SyncVectorEnv([functools.partial(gymnasium.make, env_id)] * 5, autoreset_mode=mode), steps)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        *(("CartPole-v1", name) for name in WAYS),
        *((env_id, name) for env_id in ("HalfCheetah-v5", "BipedalWalker-v3") for name in ("serial", "2 workers")),
        ("HalfCheetah-v5", "3 workers"),
        ("BipedalWalker-v3", "forkserver"),
    ],
)
def test_500_steps_equal_syncs_bit_for_bit(env_id, mode, name):
    """Observations, rewards, flags, infos with dtypes, masks and order, final observations and infos."""
    venv = make_vec(env_id, 5, vector_kwargs={"autoreset_mode": mode, **WAYS[name]})
    assert_same(trace(venv, 500), sync_trace(env_id, mode, 500))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SPACES)
def test_every_space_equals_syncs(name, mode):
    """Observations of every kind of space over many episodes, in this process and in 1, 2 and 3 workers."""
    fns = [functools.partial(SampledEnv, SPACES[name], ACTION, i) for i in range(5)]
    expected = trace(SyncVectorEnv(fns, autoreset_mode=mode), STEPS)
    for workers in (0, 1, 2, 3):
        venv = SharedMemVectorEnv(fns, autoreset_mode=mode, num_workers=workers, start_method="fork")
        assert_same(trace(venv, STEPS), expected)


@pytest.mark.parametrize("name", [name for name in SPACES if name != "half"])
def test_actions_of_every_space_reach_their_environments(name, way):
    """Each environment gets the action, of the type, that SyncVectorEnv would give it."""
    fns = [functools.partial(SampledEnv, spaces.Discrete(2), SPACES[name], i) for i in range(4)]
    assert_same(trace(SharedMemVectorEnv(fns, **way), 40), trace(SyncVectorEnv(fns), 40))


LEAVES = st.one_of(
    st.builds(
        lambda shape, dtype: spaces.Box(0, 1, shape, dtype),
        st.sampled_from([(), (1,), (2, 3)]),
        st.sampled_from([np.float16, np.float32, np.float64, np.uint8, np.int16, np.int64, np.bool_]),
    ),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-2, 2)),
    st.builds(spaces.MultiDiscrete, st.sampled_from([[2], [2, 3], [[2, 3], [4, 5]]])),
    st.builds(spaces.MultiBinary, st.sampled_from([1, 4, [2, 3]])),
    st.builds(spaces.Text, st.integers(1, 4)),
    st.builds(lambda n: spaces.Sequence(spaces.Discrete(n)), st.integers(1, 3)),
    st.builds(lambda n: spaces.OneOf([spaces.Discrete(n), spaces.MultiBinary(2)]), st.integers(1, 3)),
)
DRAWN_SPACES = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        # By keywords, which keep their order.
        st.builds(
            lambda parts: spaces.Dict(**parts),
            st.dictionaries(st.sampled_from("zyxab"), children, min_size=1, max_size=3),
        ),
        st.builds(spaces.Tuple, st.lists(children, min_size=1, max_size=3)),
    ),
    max_leaves=4,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    observation_space=DRAWN_SPACES,
    action_space=DRAWN_SPACES,
    num_envs=st.integers(1, 6),
    in_series=st.integers(0, 6),
    mode=st.sampled_from(MODES),
    schedule=st.lists(
        st.sampled_from(["step", "step", "step", "async step", "reset", "masked reset", "call", "set", "bad"]),
        max_size=14,
    ),
    seed=st.integers(0, 2**16),
)
def test_any_schedule_of_calls_equals_syncs(observation_space, action_space, num_envs, in_series, mode, schedule, seed):
    """Whatever the spaces, the split, the mode and the order of calls, results are those of SyncVectorEnv."""
    fns = [functools.partial(SampledEnv, observation_space, action_space, i) for i in range(num_envs)]
    split = {"in_series": in_series, "start_method": "fork"} if in_series else {"num_workers": 0}
    rng = np.random.default_rng(seed)
    with SharedMemVectorEnv(fns, autoreset_mode=mode, **split) as ours:
        sync = SyncVectorEnv(fns, autoreset_mode=mode)
        assert ours.observation_space == sync.observation_space
        assert ours.action_space == sync.action_space
        sync.action_space.seed(seed)
        assert_same(ours.reset(seed=seed), sync.reset(seed=seed))
        for what in schedule:
            if what in ("step", "async step"):
                actions = sync.action_space.sample()
                if what == "async step":
                    ours.step_async(actions)
                    got = ours.step_wait()
                else:
                    got = ours.step(actions)
                assert_same(got, sync.step(actions))
                ended = got[2] | got[3]
                if mode is AutoresetMode.DISABLED and ended.any():
                    assert_same(*(one.reset(seed=7, options={"reset_mask": ended}) for one in (ours, sync)))
            elif what == "reset":
                seeds = [int(one) for one in rng.integers(99, size=num_envs)]
                assert_same(*(one.reset(seed=list(seeds), options={"a": 1}) for one in (ours, sync)))
            elif what == "masked reset":
                mask = rng.random(num_envs) < 0.5
                mask[rng.integers(num_envs)] = True
                assert_same(*(one.reset(options={"reset_mask": mask, "b": 1}) for one in (ours, sync)))
            elif what == "call":
                assert_same(ours.call("tell", 1, b=2), sync.call("tell", 1, b=2))
            elif what == "set":
                for one in (ours, sync):
                    one.set_attr("tag", [f"tag {i}" for i in range(num_envs)])
            else:
                with pytest.raises(errors.ActionError):
                    ours.step(0)
        sync.close()


def test_numbers_that_grow_wider_keep_their_values(way):
    """Where one environment gives an int and another a float, no fraction is cut off."""
    values = (1, 1.5, np.float32(0.1), 2**60 + 1, None)
    fns = [functools.partial(ConstantEnv, spaces.Discrete(2), 0, 0.0, {"x": value}) for value in values]
    with SharedMemVectorEnv(fns[:3], **way) as venv:
        venv.reset()
        found = venv.step([0] * 3)[4]["x"]
        assert (found.dtype, found.tolist()) == (np.float64, [1, 1.5, float(np.float32(0.1))])
    for chosen in (fns[1:4], fns[2:]):
        with SharedMemVectorEnv(chosen, **way) as venv:
            venv.reset()
            found = venv.step([0] * 3)[4]["x"]
            assert found.dtype == object
            assert list(found) == [fn.args[3]["x"] for fn in chosen]


def test_a_batch_that_does_not_fit_advances_nobody(way):
    """Too few actions, then a good step: it is the first of every environment."""
    with counting(**way) as venv:
        venv.reset()
        for wrong in (np.zeros(2, int), np.zeros(4, int), [0, 0], 0, np.int64(0), np.zeros((3, 1), int), None):
            with pytest.raises(errors.ActionError):
                venv.step(wrong)
        assert venv.step(np.zeros(3, int))[1].tolist() == [1, 1, 1]


def test_after_a_timeout_the_late_step_is_received():
    """It stays pending, and the next step is the next one."""
    fns = [functools.partial(SleepyEnv, i, at=2, seconds=0.5) for i in range(2)]
    with SharedMemVectorEnv(fns, start_method="fork") as venv:
        venv.reset()
        rewards = [venv.step([0, 0])[1].tolist()]
        venv.step_async([0, 0])
        with pytest.raises(multiprocessing.TimeoutError, match=r"did not finish within 0.01 s: waiting for envs \[0"):
            venv.step_wait(timeout=0.01)
        with pytest.raises(AlreadyPendingCallError, match="pending call to `step`"):
            venv.step_async([0, 0])
        rewards += [venv.step_wait()[1].tolist(), venv.step([0, 0])[1].tolist()]
        assert rewards == [[1, 1], [2, 2], [3, 3]]


def test_the_final_observation_is_the_last_of_its_episode(way):
    """Also of an environment that refills one buffer in reset()."""
    with counting(horizon=2, autoreset_mode="SameStep", **way) as venv:
        venv.reset()
        venv.step([0] * 3)
        observations, *_, infos = venv.step([0] * 3)
        assert [final.tolist() for final in infos["final_obs"]] == [[i, 0, 2] for i in range(3)]
        assert infos["final_info"]["count"].tolist() == [2, 2, 2]
        assert observations.tolist() == [[i, 1, 0] for i in range(3)]


def test_a_reset_after_the_end_clears_the_pending_autoreset(way):
    """The step after it is the first of the new episode, with its action and its reward."""
    with counting(horizon=2, **way) as venv:
        venv.reset()
        venv.step([0] * 3)
        venv.step([0] * 3)
        venv.reset(options={"reset_mask": np.array([True, False, True])})
        observations, rewards, *_ = venv.step([0] * 3)
        assert observations.tolist() == [[0, 1, 1], [1, 1, 0], [2, 1, 1]]
        assert rewards.tolist() == [1, 0, 1]


def test_an_ended_episode_is_not_stepped_where_nobody_resets_it(way):
    """The error says whom to reset, and nobody has advanced."""
    with counting(horizon=2, autoreset_mode=AutoresetMode.DISABLED, **way) as venv:
        venv.reset()
        venv.step([0] * 3)
        venv.step([0] * 3)
        venv.reset(options={"reset_mask": np.array([True, False, False])})
        with pytest.raises(errors.CallError, match=r"envs \[1, 2\] have ended"):
            venv.step([0] * 3)
        venv.reset(options={"reset_mask": np.array([False, True, True])})
        assert venv.step([0] * 3)[0].tolist() == [[i, 1, 1] for i in range(3)]


def test_options_are_not_changed(way):
    """The mask stays in the caller's dict and does not reach the environments."""
    options = {"reset_mask": np.array([True, False, True]), "level": 3}
    with counting(**way) as venv:
        venv.reset()
        venv.reset(options=options)
        assert set(options) == {"reset_mask", "level"}
        calls = venv.get_attr("reset_calls")
        assert [len(one) for one in calls] == [2, 1, 2]
        assert calls[0][-1] == (None, {"level": 3})


@pytest.mark.parametrize(
    ("mask", "error", "text"),
    [
        ([True, True], TypeError, "must be a numpy array"),
        (np.array([True]), ValueError, r"must have shape `\(3,\)`, got \(1,\)"),
        (np.array([1, 0, 1]), TypeError, "must have `dtype=np.bool_`"),
        (np.zeros(3, bool), ValueError, "at least one True value"),
    ],
)
def test_a_wrong_mask_resets_nobody(mask, error, text):
    """Its kind, shape and dtype are checked before anything is sent."""
    with counting(num_workers=0) as venv:
        venv.reset()
        with pytest.raises(error, match=text):
            venv.reset(options={"reset_mask": mask})
        assert [len(one) for one in venv.get_attr("reset_calls")] == [1, 1, 1]


def test_returned_arrays_are_the_callers(way):
    """Nothing of one step changes in the next."""
    for copy in (True, False):
        with counting(copy=copy, **way) as venv:
            venv.reset()
            first = venv.step([0] * 3)
            kept = [array.copy() for array in first[:4]]
            venv.step([0] * 3)
            for array, copied in zip(first[:4], kept, strict=True):
                assert np.array_equal(array, copied)
                assert array.flags.writeable


def test_calls_out_of_order_are_gymnasiums_errors(way):
    """Each says what is pending; after close() nothing is possible but close()."""
    venv = counting(**way)
    for wait, name in ((venv.reset_wait, "reset"), (venv.step_wait, "step"), (venv.call_wait, "call")):
        with pytest.raises(NoAsyncCallError, match=f"Calling `{name}_wait` without any prior call to `{name}_async`"):
            wait()
    venv.reset_async(seed=1)
    for use in (venv.reset_async, lambda: venv.step_async([0] * 3), lambda: venv.call("tell"), venv.render):
        with pytest.raises(AlreadyPendingCallError, match="pending call to `reset`"):
            use()
    assert venv.reset_wait()[0].tolist() == [[i, 0, 0] for i in range(3)]
    venv.call_async("add", 10, b=5)
    with pytest.raises(NoAsyncCallError):
        venv.step_wait()
    with pytest.raises(AlreadyPendingCallError, match="pending call to `call`"):
        venv.set_attr("x", 1)
    assert venv.call_wait() == (15, 16, 17)
    venv.step_async([0] * 3)
    with pytest.warns(UserWarning, match="Calling `close` while waiting for a pending call to `step`"):
        venv.close()
    venv.close()
    assert venv.closed
    for use in (venv.reset, venv.render, lambda: venv.step([0] * 3), venv.step_wait, lambda: venv.get_attr("x")):
        with pytest.raises(ClosedEnvironmentError):
            use()


def test_a_failing_call_leaves_the_environments_usable(way):
    """Its exception is raised as itself, and the next step is the next one."""
    fns = [functools.partial(FaultyEnv, i, "method", "raise") for i in range(3)]
    with SharedMemVectorEnv(fns, **way) as venv:
        venv.reset()
        for _ in range(2):
            with pytest.raises(KeyError, match="bad torque"):
                venv.call("method")
        with pytest.raises(AttributeError):
            venv.get_attr("nope")
        assert venv.step([0] * 3)[1].tolist() == [1, 1, 1]
        with pytest.raises(ValueError, match=r"use step\(\) of the vector environment"):
            venv.call("step", 0)


def test_attributes_are_set_where_they_exist(way):
    """In the environment beneath a wrapper; a list has a value for each, anything else is everyone's."""
    fns = [lambda i=i: gymnasium.wrappers.TimeLimit(CountingEnv(i), 9) for i in range(3)]
    with SharedMemVectorEnv(fns, **way) as venv:
        venv.set_attr("env_id", [5, 6, 7])
        assert venv.reset()[0][:, 0].tolist() == [5, 6, 7]
        venv.set_attr("env_id", 8)
        assert venv.get_attr("env_id") == (8, 8, 8)
        with pytest.raises(ValueError, match="got a list of 2 values for 3 environments"):
            venv.set_attr("env_id", [1, 2])


def test_seeds_are_for_each_environment(way):
    """A number counts up, a list is taken as it is and must have the right length."""
    with counting(**way) as venv:
        venv.reset(seed=np.int64(5))
        venv.reset(seed=[1, None, 3])
        venv.reset(seed=np.array([4, 5, 6]))
        for wrong in ("abc", 1.5, [1, 2.5, 3], [1, "2", 3]):
            with pytest.raises(ValueError, match="an integer or a list of integers"):
                venv.reset(seed=wrong)
        with pytest.raises(ValueError, match="options must be a dict, got 'x'"):
            venv.reset(options="x")
        with pytest.raises(ValueError, match="a list of 3, one an environment: got 2"):
            venv.reset(seed=[1, 2])
        seeds = [[seed for seed, _ in calls] for calls in venv.get_attr("reset_calls")]
        assert seeds == [[5, 1, 4], [6, None, 5], [7, 3, 6]]


def test_spaces_may_differ_as_far_as_the_mode_says(way):
    """'same' wants equal spaces, 'different' equal shapes, and a tuple names them."""
    boxes = [spaces.Box(0, high, (2,), np.float32) for high in (1, 2, 3)]
    fns = [functools.partial(SampledEnv, box, ACTION, i) for i, box in enumerate(boxes)]
    with pytest.raises(RuntimeError, match=r"not equivalent.*use `observation_mode='different'` instead"):
        SharedMemVectorEnv(fns, **way)
    with SharedMemVectorEnv(fns, observation_mode="different", **way) as venv:
        assert venv.observation_space == batch_differing_spaces(boxes)
        assert venv.single_observation_space == boxes[0]
        assert venv.reset(seed=0)[0].shape == (3, 2)
    single = spaces.Box(0, 9, (2,), np.float32)
    batched = spaces.Box(0, 9, (3, 2), np.float32)
    with SharedMemVectorEnv(fns, observation_mode=(batched, single), **way) as venv:
        assert (venv.observation_space, venv.single_observation_space) == (batched, single)
    wide = functools.partial(SampledEnv, spaces.Box(0, 1, (3,), np.float32), ACTION)
    for mode in ("different", (batched, single)):
        with pytest.raises(errors.SpaceMismatchError, match="do not share a common shape and dtype"):
            SharedMemVectorEnv([*fns, wide], observation_mode=mode, **way)
    with pytest.raises(errors.SpaceMismatchError, match="different action spaces"):
        SharedMemVectorEnv([fns[0], functools.partial(SampledEnv, boxes[0], spaces.Discrete(2))], **way)


def test_wrong_options_are_said_at_once():
    """Before anything is built, with what was expected and what was given."""
    fns = [functools.partial(CountingEnv, i) for i in range(4)]
    for options, error, text in (
        ({"worker": print}, ValueError, "worker must be None"),
        ({"observation_mode": "odd"}, ValueError, "Invalid `observation_mode`"),
        ({"observation_mode": (1, 2)}, TypeError, "a tuple of two spaces"),
        ({"autoreset_mode": "Never"}, ValueError, "'NextStep', 'SameStep', 'Disabled'"),
        ({"max_concurrency": 0}, ValueError, "max_concurrency must be at least 1, got 0"),
        ({"max_concurrency": 2, "in_series": 1}, ValueError, "in_series=1 asks for 4"),
        ({"in_serie": 2}, TypeError, "unexpected keyword argument 'in_serie': did you mean 'in_series'"),
        ({"xyz": 2}, TypeError, "unexpected keyword argument 'xyz': expected one of num_workers, "),
    ):
        with pytest.raises(error, match=text):
            SharedMemVectorEnv(fns, **options)
    with SharedMemVectorEnv(fns, max_concurrency=1, start_method="fork") as venv:
        assert venv.num_workers == 1


def test_what_vector_environments_promise_to_have(way):
    """metadata with the mode and without changing the environment's own, render mode, frames, generators, repr."""
    make = functools.partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")
    with SharedMemVectorEnv([make] * 2, **way) as venv:
        venv.reset(seed=4)
        assert venv.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        assert venv.metadata["render_fps"] == 50
        assert "autoreset_mode" not in make().metadata
        assert venv.render_mode == "rgb_array"
        assert [frame.shape for frame in venv.render()] == [(400, 600, 3)] * 2
        assert venv.np_random_seed == (4, 5)
        assert all(isinstance(one, np.random.Generator) for one in venv.np_random)
        assert repr(venv) == "SharedMemVectorEnv(num_envs=2)"
        assert (venv.unwrapped, venv.spec) == (venv, None)


class RenderingEnv(CountingEnv):
    """Renders what it is told to."""

    def __init__(self, env_id, rendered):
        super().__init__(env_id)
        self.rendered = rendered

    def render(self):
        return self.rendered


def test_what_is_no_image_is_returned_as_it_is(way):
    """render() makes no picture of what the environments render: None, text and images come back side by side."""
    rendered = (None, "text", np.full((2, 3, 3), 7, np.uint8))
    with SharedMemVectorEnv([functools.partial(RenderingEnv, i, v) for i, v in enumerate(rendered)], **way) as venv:
        assert_same(venv.render(), rendered)


def test_make_vec_is_gymnasiums(way):
    """Arguments, wrappers and the spec, from which gymnasium.make_vec and fastvec.make_vec make the same again."""
    venv = make_vec(
        "MountainCar-v0", 3, wrappers=[gymnasium.wrappers.TimeAwareObservation], vector_kwargs=way, goal_velocity=0.1
    )
    assert repr(venv) == "SharedMemVectorEnv(MountainCar-v0, num_envs=3)"
    assert venv.get_attr("goal_velocity") == (0.1,) * 3
    again = make_vec(venv.spec)
    assert (again.spec, again.num_envs, again.num_workers) == (venv.spec, 3, way["num_workers"])
    reference = gymnasium.make_vec(
        "MountainCar-v0", 3, "sync", wrappers=[gymnasium.wrappers.TimeAwareObservation], goal_velocity=0.1
    )
    expected = trace(reference, 20)
    for one in (venv, again):
        assert_same(trace(one, 20), expected)
    serial = make_vec("gymnasium.envs.classic_control:CartPole-v1", vectorization_mode="sync")
    assert serial.num_workers == 0
    serial.close()
    with pytest.raises(gymnasium.error.NameNotFound):
        make_vec("Nothing-v0")
    with pytest.raises(gymnasium.error.Error, match="name of an environment or its EnvSpec, got 5"):
        make_vec(5)
    for options, text in (
        ({"num_workers": 2}, r"num_workers: options of the vector environment go into vector_kwargs"),
        ({"autoreset_mode": "SameStep"}, "autoreset_mode: options of the vector environment"),
        ({"num_envs": 0}, "num_envs must be a positive integer, got 0"),
        ({"wrappers": gymnasium.wrappers.ClipAction}, "a sequence of functions"),
    ):
        with pytest.raises(errors.ConfigError, match=text):
            make_vec("CartPole-v1", **options)
    with pytest.warns(UserWarning, match="latest versioned environment"):
        newest = make_vec("CartPole", vectorization_mode="sync")
    assert newest.spec.id == "CartPole-v1"
    newest.close()
    rebuilt = gymnasium.make_vec(serial.spec)
    assert type(rebuilt) is SyncVectorEnv
    rebuilt.close()
    with pytest.raises(ValueError, match="'async' or 'sync', got 'vector_entry_point'"):
        make_vec("CartPole-v1", vectorization_mode="vector_entry_point")


def test_gymnasium_make_vec_gives_ours_where_it_is_put_in_place(monkeypatch):
    """gymnasium.make_vec looks AsyncVectorEnv up when it is called."""
    monkeypatch.setattr(gymnasium.vector, "AsyncVectorEnv", SharedMemVectorEnv)
    venv = gymnasium.make_vec("CartPole-v1", 3, "async", vector_kwargs={"num_workers": 2, "start_method": "fork"})
    assert type(venv) is SharedMemVectorEnv
    assert venv.reset(seed=0)[0].shape == (3, 4)
    venv.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_gymnasiums_vector_wrappers_wrap_it(mode, way):
    """Episode statistics and normalized observations equal those over SyncVectorEnv."""

    def wrapped(venv):
        venv = wrappers.RecordEpisodeStatistics(venv)
        return wrappers.NormalizeObservation(venv) if mode is AutoresetMode.NEXT_STEP else venv

    def told(venv):
        found = trace(wrapped(venv), 200)
        for *_, infos in found:  # the wall clock
            infos.get("episode", {}).pop("t", None)
            infos.get("final_info", {}).get("episode", {}).pop("t", None)
        return found

    fns = [functools.partial(gymnasium.make, "CartPole-v1")] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = told(SyncVectorEnv(fns, autoreset_mode=mode))
        assert_same(told(SharedMemVectorEnv(fns, autoreset_mode=mode, **way)), expected)


def test_key_order_need_not_be_the_same_in_every_worker(tmp_path):
    """Spaces are equal whatever the order of their keys; each value arrives under its own."""
    names = ["camera", "lidar", "speed"]

    class Shuffled(gymnasium.Env):
        action_space = spaces.Discrete(2)

        def __init__(self, shift):
            order = names[shift:] + names[:shift]
            self.observation_space = spaces.Dict(
                OrderedDict((name, spaces.Box(0, 9, (1 + names.index(name),), np.float32)) for name in order)
            )

        def look(self):
            return {name: np.full(1 + i, i, np.float32) for i, name in enumerate(names)}

        def reset(self, *, seed=None, options=None):
            return self.look(), {}

        def step(self, action):
            return self.look(), 0.0, True, False, {}

    fns = [functools.partial(Shuffled, i) for i in range(3)]
    with SharedMemVectorEnv(fns, num_workers=3, start_method="fork", autoreset_mode="SameStep") as venv:
        for observations in (venv.reset()[0], venv.step([0] * 3)[0]):
            assert {name: array[:, 0].tolist() for name, array in observations.items()} == {
                name: [i] * 3 for i, name in enumerate(names)
            }
        finals = venv.step([0] * 3)[4]["final_obs"]
        assert [{name: array[0] for name, array in final.items()} for final in finals] == [
            {"camera": 0, "lidar": 1, "speed": 2}
        ] * 3


def test_a_whole_reset_drops_what_is_pending(way):
    """After Ctrl-C in a notebook, say, reset() is the way back."""
    with counting(**way) as venv:
        venv.reset()
        venv.step_async([0] * 3)
        assert venv.reset()[0].tolist() == [[i, 1, 0] for i in range(3)]
        venv.call_async("add", 1)
        assert venv.reset()[0].tolist() == [[i, 2, 0] for i in range(3)]
        venv.step_async([0] * 3)
        with pytest.raises(AlreadyPendingCallError):
            venv.reset(options={"reset_mask": np.array([True, False, False])})
        assert venv.step_wait()[1].tolist() == [1, 1, 1]


def test_kinds_of_truth_and_missing_numbers_stay_arrays(way):
    """bool beside numpy.bool_ is an array of bool, and NaN fits every float array."""
    for values, expected in (
        ((True, np.False_, False), np.array([True, False, False])),
        ((0, float("nan"), np.float32(1)), np.array([0, np.nan, 1])),
    ):
        fns = [functools.partial(ConstantEnv, spaces.Discrete(2), 0, 0.0, {"x": value}) for value in values]
        with SharedMemVectorEnv(fns, **way) as venv:
            venv.reset()
            found = venv.step([0] * 3)[4]["x"]
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected, equal_nan=expected.dtype == float)


class Tensor:
    """An array of another library."""

    def __init__(self, array, on_device=False):
        self.array, self.on_device = array, on_device

    def __array__(self, dtype=None, copy=None):
        if self.on_device:
            raise TypeError("can't convert device type tensor to numpy")
        return self.array

    def __iter__(self):
        return iter(self.array)


def test_tensors_travel_as_arrays(way):
    """And one on a device is an error that says how to bring it here."""
    with counting(**way) as venv:
        venv.reset()
        assert venv.step(Tensor(np.array([1, 2, 3])))[4]["kind"].tolist() == ["int64"] * 3
        with pytest.raises(errors.ActionError, match=r"a Tensor that is not .*actions.cpu\(\).numpy\(\)"):
            venv.step(Tensor(np.array([1, 2, 3]), on_device=True))
