"""The OpenAI Baselines face: equal to a plain loop with Baselines' semantics, for environments of both APIs."""

from __future__ import annotations

import copy
import functools
import inspect
from collections import OrderedDict

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from test_engine import assert_same
from test_imports import loaded_by
from toys import CountingEnv, SpaceEnv, fail

from fastvec import errors
from fastvec._baselines_adapter import EitherEnv, gymnasium_space
from fastvec.baselines import SharedMemVecEnv

WAYS = {
    "serial": {"num_workers": 0},
    "2 workers": {"num_workers": 2, "context": "fork"},
}
BOX = spaces.Box(0, 255, (3, 2), np.uint8)
DICT = spaces.Dict(OrderedDict(z=spaces.Discrete(3), a=spaces.Box(0, 1, (2,), np.float32)))


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


class OldEnv(gymnasium.Env):
    """Old Gym's API: four values from step(), a bare observation from reset(); one info dict for all its life."""

    def __init__(self, env_id, space=BOX):
        self.observation_space = copy.deepcopy(space)
        self.observation_space.seed(env_id)
        self.action_space = spaces.Discrete(5)
        self.env_id, self.count, self.info = env_id, 0, {}

    def reset(self):
        self.count = 0
        self.info["of the reset"] = True
        return self.observation_space.sample()

    def step(self, action):
        self.count += 1
        done = self.count > self.env_id
        self.info.clear()
        self.info.update(action=action, kind=type(action).__name__, text=f"step {self.count}", third=self.count / 3)
        if done:
            self.info["episode"] = {"r": 1.5, "l": self.count}
        return self.observation_space.sample(), self.count / 3, done, self.info

    def render(self, mode="human"):
        return np.full((2, 3, 3), self.env_id, np.uint8) if mode == "rgb_array" else None


class DuckEnv:
    """Derived from nothing; as the environment of Baselines' tests does, it changes and returns one array for ever."""

    def __init__(self, env_id):
        self.observation_space = spaces.Box(-1e6, 1e6, (3,), np.float64)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.env_id, self.count, self.observation = env_id, 0, np.zeros(3)

    def seed(self, seed=None):
        self.observation[0] = seed

    def reset(self):
        self.count = 0
        return self.observation

    def step(self, action):
        self.count += 1
        self.observation[1:] += action
        return self.observation, float(action.sum()), np.bool_(self.count % (self.env_id + 2) == 0), {}

    def close(self):
        pass


class OldFaultyEnv(OldEnv):
    def step(self, action):
        if self.env_id == 1:
            fail("raise")
        return super().step(action)


def seeded_duck(env_id):
    env = DuckEnv(env_id)
    env.seed(10 * env_id)
    return env


def seeded_new(env_id, space=BOX):
    env = SpaceEnv(space, env_id)
    env.reset(seed=env_id)
    return env


class Oracle:
    """What Baselines' classes do, in a plain loop."""

    def __init__(self, env_fns):
        self.envs = [env_fn() for env_fn in env_fns]

    def reset(self):
        return self.stack([self.first(env) for env in self.envs])

    def step(self, actions):
        rows = [self.one(env, action) for env, action in zip(self.envs, actions, strict=True)]
        observations, rewards, dones, infos = zip(*rows, strict=True)
        return self.stack(observations), np.stack(rewards), np.stack(dones), infos

    def one(self, env, action):
        observation, reward, *ends, info = copy.deepcopy(env.step(action))
        if any(ends):
            observation = self.first(env)
        return observation, reward, np.bool_(any(ends)), info

    @staticmethod
    def first(env):
        result = env.reset()
        return copy.deepcopy(result[0] if type(result) is tuple else result)

    @staticmethod
    def stack(rows):
        if isinstance(rows[0], dict):
            return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
        return np.stack(rows)


def trace(venv, action_space, n, steps=25):
    """Everything that is returned over some steps of random actions, kept as it came and looked at in the end."""
    action_space = copy.deepcopy(action_space)
    action_space.seed(3)
    found = [venv.reset()]
    for _ in range(steps):
        found.append(venv.step(np.stack([action_space.sample() for _ in range(n)])))
    return found


KINDS = {"old": OldEnv, "duck": seeded_duck, "new": seeded_new}


@functools.lru_cache
def expected(kind, n):
    oracle = Oracle([functools.partial(KINDS[kind], i) for i in range(n)])
    return trace(oracle, oracle.envs[0].action_space, n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "workers"),
    [({"context": "fork", "in_series": k}, 12 // k) for k in (1, 3, 4, 6)]
    + [({"num_workers": 0}, 0), (WAYS["2 workers"], 2)],
    ids=str,
)
def test_steps_equal_a_plain_loop(kind, options, workers):
    """Observations, rewards, dones and infos, with their dtypes and types, of environments of either API."""
    with SharedMemVecEnv([functools.partial(KINDS[kind], i) for i in range(12)], **options) as venv:
        assert (venv.nremotes, venv.num_workers) == (workers, workers)
        assert_same(trace(venv, venv.action_space, 12), expected(kind, 12))


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_every_context_gives_the_same(context):
    """So do spawned workers, which are the default, and those of a fork server."""
    fns = [functools.partial(OldEnv, i) for i in range(3)]
    options = {} if context == "spawn" else {"context": context}
    with SharedMemVecEnv(fns, in_series=2, **options) as venv:
        assert venv.num_workers == 2
        assert_same(trace(venv, venv.action_space, 3), expected("old", 3))


def test_importing_it_loads_no_learning_framework():
    """It costs NumPy and Gymnasium; above all it needs no `baselines` and no `gym`."""
    modules = loaded_by("import fastvec.baselines")
    assert "gymnasium" in modules
    assert modules & {"baselines", "gym", "tensorflow", "stable_baselines3", "torch"} == set()


def test_the_signature_begins_as_baselines_does():
    """The arguments of SubprocVecEnv in their order with their defaults; everything else by name."""
    parameters = list(inspect.signature(SharedMemVecEnv).parameters.values())
    assert [(p.name, p.default) for p in parameters[1:4]] == [("spaces", None), ("context", "spawn"), ("in_series", 1)]
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters[4:])
    with pytest.raises(TypeError, match="unexpected keyword argument 'step_timeot': did you mean 'step_timeout'"):
        SharedMemVecEnv([functools.partial(OldEnv, 0)], step_timeot=1)
    fns = [functools.partial(OldEnv, i) for i in range(4)]
    with SharedMemVecEnv(fns, None, "fork", 2) as venv:
        assert (venv.num_envs, venv.nremotes) == (4, 2)
        assert venv.observation_space == BOX
        assert venv.spec is None
        assert venv.unwrapped is venv
        assert venv.metadata["render.modes"] == ["human", "rgb_array"]
        assert venv.viewer is None


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ({"num_workers": 3}, 3),
        ({"in_series": None, "num_workers": 2}, 2),
        ({"in_series": 3}, 2),
        ({"in_series": 3, "num_workers": 2}, 2),
        ({"num_workers": 0}, 0),
    ],
)
def test_num_workers_takes_precedence_over_the_default_of_in_series(options, workers):
    """The default in_series=1 gives way, another one must agree."""
    with SharedMemVecEnv([functools.partial(OldEnv, i) for i in range(4)], context="fork", **options) as venv:
        assert venv.nremotes == workers


def test_what_comes_back_is_the_callers(way):
    """Rewards and dones are kept by runners without a copy: nothing changes under them, and all is writable."""
    with SharedMemVecEnv([functools.partial(OldEnv, i) for i in range(3)], **way) as venv:
        venv.reset()
        first = venv.step(np.zeros(3, int))
        kept = copy.deepcopy(first)
        observations, rewards, dones, infos = venv.step(np.zeros(3, int))
        assert_same(first, kept)
        for array in (observations, rewards, dones):
            assert array.flags.writeable
            array[...] = 0
        for info in infos:
            info["mine"] = 1
        assert not any("mine" in info for info in venv.step(np.zeros(3, int))[3])


def test_infos_are_what_the_environment_returned(way):
    """Neither terminal_observation nor TimeLimit.truncated appears, and not what reset() did to the dict."""
    with SharedMemVecEnv([functools.partial(OldEnv, 0), functools.partial(OldEnv, 1)], **way) as venv:
        venv.reset()
        _, _, dones, infos = venv.step([3, 4])
    assert dones.tolist() == [True, False]
    last = {"action": 3, "kind": "int", "text": "step 1", "third": 1 / 3, "episode": {"r": 1.5, "l": 1}}
    assert_same(infos, (last, {"action": 4, "kind": "int", "text": "step 1", "third": 1 / 3}))


def test_truncation_ends_an_episode(way):
    """Of Gymnasium's two flags either is a done, and the observation is the next episode's."""
    with SharedMemVecEnv([functools.partial(CountingEnv, i, horizon=2) for i in range(3)], **way) as venv:
        venv.reset()
        assert venv.step([0] * 3)[2].tolist() == [False] * 3
        observations, _, dones, infos = venv.step([0] * 3)
    assert dones.tolist() == [True] * 3
    assert observations.tolist() == [[i, 1, 0] for i in range(3)]
    assert [set(info) for info in infos] == [{"action", "kind", "count"}] * 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_reward_dtype_can_be_chosen(way, dtype):
    """float64 is SubprocVecEnv's for Python's floats, float32 DummyVecEnv's."""
    options = {} if dtype is np.float64 else {"reward_dtype": dtype}
    with SharedMemVecEnv([functools.partial(OldEnv, 3)], **options, **way) as venv:
        venv.reset()
        assert_same(venv.step([0])[1], np.array([1 / 3], dtype))
    with pytest.raises(errors.ConfigError, match="must be a floating dtype, got int32"):
        SharedMemVecEnv([functools.partial(OldEnv, 3)], reward_dtype=np.int32)


@pytest.mark.parametrize("make", [OldEnv, seeded_new])
@pytest.mark.parametrize(
    "space",
    [
        DICT,
        spaces.Discrete(7),
        spaces.Tuple([spaces.Box(0, 1, (2,), np.float32), spaces.Box(0, 9, (2,), np.int64)]),
        spaces.Tuple([spaces.Discrete(3), spaces.Discrete(4)]),
        spaces.Dict(x=spaces.Tuple([spaces.Discrete(3), spaces.Discrete(4)])),
    ],
    ids=str,
)
def test_spaces_of_spaces_are_laid_out_as_numpy_stacks_them(make, space, way):
    """A dict of arrays for Dict, one array for a Tuple of one shape."""
    oracle = Oracle([functools.partial(make, i, space) for i in range(3)])
    # np.stack of the tuples themselves, not of what a Gymnasium reset() returns beside them
    oracle.first = lambda env: EitherEnv(env).reset()[0]
    with SharedMemVecEnv([functools.partial(make, i, space) for i in range(3)], **way) as venv:
        ours, theirs = trace(venv, venv.action_space, 3), trace(oracle, venv.action_space, 3)
    assert_same(ours, theirs)


@pytest.mark.parametrize("make", [OldEnv, seeded_new])
def test_a_pair_with_a_dict_is_told_from_an_observation_with_an_info(make, way):
    """reset() of an old environment that observes (array, dict) looks like (observation, info), and is not taken so."""
    space = spaces.Tuple([spaces.Box(0, 1, (2,), np.float32), spaces.Dict(x=spaces.Discrete(4))])
    with SharedMemVecEnv([functools.partial(make, i, space) for i in range(3)], **way) as venv:
        for array, rest in (venv.reset(), venv.step(np.zeros((3, *venv.action_space.shape), np.int64))[0]):
            assert (array.shape, array.dtype) == ((3, 2), np.float32)
            assert (rest["x"].shape, rest["x"].dtype) == ((3,), np.int64)


def test_step_must_return_four_or_five_values():
    """Anything else is an error that says what was expected."""
    env = DuckEnv(0)
    for result, got in (((1, 2, 3), "3 values"), (None, "a NoneType")):
        env.step = lambda action, result=result: result
        with pytest.raises(
            errors.EnvError, match=rf"\(observation, reward, done, info\) by the old gym API, got {got}"
        ):
            EitherEnv(env).step(0)


def test_use_after_close(way):
    """Baselines asserts, fastvec has an error of its own: it is both. Closing again is nothing."""
    venv = SharedMemVecEnv([functools.partial(OldEnv, i) for i in range(2)], **way)
    venv.reset()
    venv.step_async([0, 0])
    assert venv.waiting
    venv.close()
    venv.close()
    assert venv.closed
    for use in (venv.reset, venv.step_wait, venv.get_images, venv.render, lambda: venv.step([0, 0])):
        for kind in (AssertionError, errors.ClosedError):
            with pytest.raises(kind, match=r"Trying to operate on a SharedMemVecEnv after calling close\(\)"):
                use()


def test_given_spaces_are_checked_and_used(way):
    """The caller's own objects, if they are what the environments declare; otherwise the error shows both."""
    fns = [functools.partial(OldEnv, i) for i in range(2)]
    given = (copy.deepcopy(BOX), spaces.Discrete(5))
    with SharedMemVecEnv(fns, given, **way) as venv:
        assert venv.observation_space is given[0]
        assert venv.action_space is given[1]
    with pytest.raises(errors.SpaceMismatchError, match=r"`spaces` and the environments .* action .*\(4\).*\(5\)"):
        SharedMemVecEnv(fns, (BOX, spaces.Discrete(4)), **way)
    narrow = spaces.Box(0, 9, (3, 2), np.uint8)
    with pytest.raises(errors.SpaceMismatchError, match="pass allow_space_differences=True"):
        SharedMemVecEnv(fns, (narrow, spaces.Discrete(5)), **way)
    with SharedMemVecEnv(fns, (narrow, spaces.Discrete(5)), allow_space_differences=True, **way) as venv:
        assert venv.observation_space == narrow
    with pytest.raises(errors.ConfigError, match=r"must be a pair \(observation_space, action_space\), got Box"):
        SharedMemVecEnv(fns, BOX, **way)


def test_environments_must_agree(way):
    """Different spaces among the environments are an error too."""
    fns = [functools.partial(OldEnv, 0), functools.partial(OldEnv, 1, DICT)]
    with pytest.raises(errors.SpaceMismatchError, match="env 0 and env 1 declare different observation spaces"):
        SharedMemVecEnv(fns, **way)


def test_an_exception_arrives_as_its_own_type(way):
    """Also from an environment of the old API, whose cause says which it was; then all but close() is refused."""
    venv = SharedMemVecEnv([functools.partial(OldFaultyEnv, i) for i in range(3)], **way)
    venv.reset()
    with pytest.raises(KeyError, match="bad torque") as caught:
        venv.step([0, 0, 0])
    assert (caught.value.__cause__.env_index, caught.value.__cause__.command) == (1, "step")
    with pytest.raises(errors.BrokenError, match="bad torque"):
        venv.reset()
    venv.close()


def test_a_wrong_batch_of_actions_advances_nobody(way):
    """After an ActionError the next good step is every environment's first; so it is after a dropped one."""
    with SharedMemVecEnv([functools.partial(OldEnv, 5) for _ in range(3)], **way) as venv:
        venv.reset()
        with pytest.raises(errors.ActionError, match="sequence of 3 actions, one an environment: got 2"):
            venv.step([0, 0])
        assert [info["text"] for info in venv.step([0, 0, 0])[3]] == ["step 1"] * 3
        venv.step_async([0, 0, 0])
        venv.reset()
        with pytest.raises(errors.CallError, match="no step is pending"):
            venv.step_wait()
        assert [info["text"] for info in venv.step([0, 0, 0])[3]] == ["step 1"] * 3


def test_two_factories_of_one_environment():
    """An environment without `unwrapped` is known by itself."""
    env = DuckEnv(0)
    with pytest.raises(errors.DuplicateEnvError):
        SharedMemVecEnv([lambda: env] * 2, num_workers=0)


def test_envs_are_there_without_workers_only():
    """As DummyVecEnv's, the environments that the factories made."""
    with SharedMemVecEnv([functools.partial(DuckEnv, 7)], num_workers=0) as venv:
        assert venv.envs[0].env_id == 7
        assert type(venv.envs[0]) is DuckEnv
    with SharedMemVecEnv([functools.partial(DuckEnv, 7)], context="fork") as venv:
        assert not hasattr(venv, "envs")


# ---------------------------------------------------------------- rendering and specs


class Viewer:
    def __init__(self):
        self.shown, self.isopen = [], True

    def imshow(self, image):
        self.shown.append(image)

    def close(self):
        self.isopen = False


def test_images_are_tiled(way):
    """Old environments are asked for images; three of them fill a grid of 2 by 2, shown or returned."""
    viewer = Viewer()
    with SharedMemVecEnv([functools.partial(OldEnv, i + 1) for i in range(3)], **way) as venv:
        assert [image.tolist() for image in venv.get_images()] == [np.full((2, 3, 3), i + 1).tolist() for i in range(3)]
        picture = venv.render("rgb_array")
        assert picture.dtype == np.uint8
        assert picture[:, :, 0].tolist() == [[1] * 3 + [2] * 3] * 2 + [[3] * 3 + [0] * 3] * 2
        with pytest.raises(errors.ConfigError, match=r"gym 0\.21 or older, which is not installed"):
            venv.render()
        venv.viewer = viewer
        assert venv.render() is True
        assert np.array_equal(viewer.shown[0], picture)
        with pytest.raises(errors.ConfigError, match="mode must be 'human' or 'rgb_array', got 'ansi'"):
            venv.render("ansi")
    assert viewer.isopen is False


def test_gymnasiums_environments_render_as_they_were_made_to(way):
    """With render_mode="rgb_array" there are images; `spec` is the environment's."""
    with SharedMemVecEnv([lambda: gymnasium.make("CartPole-v1", render_mode="rgb_array")] * 2, **way) as venv:
        venv.reset()
        assert venv.render("rgb_array").shape == (800, 600, 3)
        assert venv.spec.id == "CartPole-v1"
    with SharedMemVecEnv([functools.partial(ImagelessEnv, 0)], **way) as venv:
        assert venv.get_images() == [None]
        with pytest.raises(errors.ConfigError, match=r"env 0 rendered no image but NoneType: .*render_mode="):
            venv.render("rgb_array")


class ImagelessEnv(CountingEnv):
    """Has a spec that cannot be pickled, and renders nothing."""

    @property
    def spec(self):
        return (part for part in ())

    def render(self):
        return None


def test_a_spec_that_cannot_be_sent_is_none(way):
    """It costs the spec, not the environments."""
    with SharedMemVecEnv([functools.partial(ImagelessEnv, 0)], **way) as venv:
        assert venv.spec is None


# ---------------------------------------------------------------- spaces of the gym package


class Box:
    def __init__(self, low, high, shape, dtype):
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)
        self.shape, self.dtype = shape, np.dtype(dtype)


class Discrete:
    def __init__(self, n):
        self.n, self.shape, self.dtype = n, (), np.dtype(np.int64)


class Dict:
    def __init__(self, **children):
        self.spaces, self.shape, self.dtype = OrderedDict(children), None, None


class OldGymEnv(OldEnv):
    """Declares spaces of a package that is not Gymnasium."""

    def __init__(self, env_id):
        super().__init__(env_id, DICT)
        self.samples = self.observation_space
        self.observation_space = Dict(z=Discrete(3), a=Box(0, 1, (2,), np.float32))
        self.observation_space.sample = self.samples.sample
        self.action_space = Discrete(5)


def test_spaces_of_old_gym(way):
    """The very object of old Gym comes back, since Baselines asks for its class; arrays are as it declares them."""
    oracle = Oracle([functools.partial(OldGymEnv, i) for i in range(3)])
    with SharedMemVecEnv([functools.partial(OldGymEnv, i) for i in range(3)], **way) as venv:
        assert type(venv.observation_space) is Dict
        assert type(venv.action_space) is Discrete
        assert_same(trace(venv, spaces.Discrete(5), 3), trace(oracle, spaces.Discrete(5), 3))


def test_translated_spaces():
    """By the names of their classes; what has no such name is left as it is."""
    assert gymnasium_space(Box(-1, 1, (2, 3), np.float32)) == spaces.Box(-1, 1, (2, 3), np.float32)
    assert gymnasium_space(Dict(z=Discrete(3), a=Box(0, 1, (2,), np.float32))) == DICT
    assert list(gymnasium_space(Dict(z=Discrete(3), a=Discrete(2))).spaces) == ["z", "a"]
    assert gymnasium_space(DICT) is DICT
    other = object()
    assert gymnasium_space(other) is other


# ---------------------------------------------------------------- a runner


def collect(venv, nsteps, rollouts):
    """Rollouts as PPO2's runner takes them: it copies observations into its own array, and keeps the rest."""
    space = venv.action_space
    obs = np.zeros((12, *BOX.shape), BOX.dtype)
    obs[:] = venv.reset()
    dones, collected = [False] * 12, []
    for _ in range(rollouts):
        batch = {"obs": [], "actions": [], "rewards": [], "dones": [], "episodes": []}
        for _ in range(nsteps):
            actions = obs.reshape(12, -1).sum(axis=1) % space.n
            batch["obs"].append(obs.copy())
            batch["actions"].append(actions)
            batch["dones"].append(dones)
            obs[:], rewards, dones, infos = venv.step(actions)
            batch["episodes"] += [info["episode"] for info in infos if info.get("episode")]
            batch["rewards"].append(rewards)
        collected.append({key: np.asarray(value) for key, value in batch.items()})
    return collected


def test_rollouts_equal_a_plain_loops():
    """1200 steps, collected as Baselines' runner does, array for array."""
    fns = [functools.partial(OldEnv, i) for i in range(12)]
    oracle = Oracle(fns)
    oracle.action_space = oracle.envs[0].action_space
    with SharedMemVecEnv(fns, None, "fork", 4) as venv:
        assert_same(collect(venv, 20, 5), collect(oracle, 20, 5))
