"""The Stable-Baselines3 face: equal to DummyVecEnv bit for bit, and everything that SB3 relies on."""

from __future__ import annotations

import functools
import os
import signal
import sys
import types
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from test_engine import SPACES, assert_same
from toys import ConstantEnv, CountingEnv, FaultyEnv, SpaceEnv

pytest.importorskip("stable_baselines3")

from stable_baselines3 import A2C, DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)

from fastvec import SharedMemVecEnv, errors

WAYS = {
    "serial": {"num_workers": 0},
    "1 worker": {"num_workers": 1, "start_method": "fork"},
    "2 workers": {"num_workers": 2, "start_method": "fork"},
    "3 workers": {"num_workers": 3, "start_method": "fork"},
    "spawn": {"num_workers": 2, "start_method": "spawn"},
    "forkserver": {"num_workers": 2, "start_method": "forkserver"},
}


@pytest.fixture(params=["serial", "2 workers"])
def way(request):
    return WAYS[request.param]


class RenderingEnv(CountingEnv):
    """Renders what it is told to, as an image."""

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self, env_id, rendered):
        super().__init__(env_id)
        self.rendered = rendered

    def render(self):
        return self.rendered


class CartPoleWithPid(CartPoleEnv):
    def get_pid(self):
        return os.getpid()


def plain(observations):
    """DummyVecEnv gives an OrderedDict, SubprocVecEnv and SharedMemVecEnv a dict."""
    return dict(observations) if isinstance(observations, dict) else observations


def trace(venv, steps, seed=11):
    """Everything that a VecEnv returns over some steps of random actions."""
    rng = np.random.default_rng(seed)
    space = venv.action_space
    venv.seed(seed)
    venv.set_options({"option": 1})
    found = [(plain(venv.reset()), [dict(info) for info in venv.reset_infos])]
    for _ in range(steps):
        if isinstance(space, spaces.Discrete):
            actions = rng.integers(space.n, size=venv.num_envs)
        else:
            actions = rng.uniform(space.low, space.high, (venv.num_envs, *space.shape)).astype(space.dtype)
        observations, rewards, dones, infos = venv.step(actions)
        for info in infos:
            if "episode" in info:  # holds the wall clock
                info["episode"] = {k: v for k, v in info["episode"].items() if k != "t"}
        observations = plain(observations)
        found.append((observations, rewards, dones, list(infos), [dict(info) for info in venv.reset_infos]))
    venv.close()
    return found


@functools.lru_cache
def dummy_trace(env_id, steps):
    return trace(make_vec_env(env_id, n_envs=5, seed=1), steps)


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "BipedalWalker-v3", "HalfCheetah-v5", "Humanoid-v5"])
def test_500_steps_equal_dummys_bit_for_bit(env_id, name):
    """Observations, rewards, dones, infos with their types, terminal observations and reset infos."""
    venv = make_vec_env(env_id, n_envs=5, seed=1, vec_env_cls=SharedMemVecEnv, vec_env_kwargs=WAYS[name])
    assert_same(trace(venv, 500), dummy_trace(env_id, 500))


@pytest.mark.parametrize("name", [n for n in SPACES if n not in ("nested", "text", "graph", "sequence", "oneof")])
def test_every_space_of_dummys_equals_dummys(name, way):
    """Toy environments of every kind of space that DummyVecEnv has, with infos of every kind."""
    fns = [functools.partial(SpaceEnv, SPACES[name], i) for i in range(5)]
    assert_same(trace(SharedMemVecEnv(fns, **way), 60), trace(DummyVecEnv(fns), 60))


def test_the_terminal_observation_is_the_last_of_its_episode(way):
    """Also of an environment that refills one buffer in reset(), where DummyVecEnv returns the wrong one."""
    fns = [functools.partial(CountingEnv, i, horizon=2) for i in range(3)]
    last = {}
    for name, venv in (("ours", SharedMemVecEnv(fns, **way)), ("dummy", DummyVecEnv(fns))):
        venv.reset()
        venv.step(np.zeros(3, int))
        last[name] = [info["terminal_observation"].tolist() for info in venv.step(np.zeros(3, int))[3]]
        venv.close()
    assert last["ours"] == [[i, 0, 2] for i in range(3)]
    assert last["dummy"] == [[i, 1, 0] for i in range(3)]


def test_what_comes_back_is_what_learners_rely_on(way):
    """dtypes, ownership and containers of every returned value."""
    venv = SharedMemVecEnv([functools.partial(CountingEnv, i, horizon=2) for i in range(3)], **way)
    first = venv.reset()
    assert type(first) is np.ndarray
    observations, rewards, dones, infos = venv.step(np.zeros(3, int))
    assert (observations.dtype, rewards.dtype, dones.dtype) == (np.float32, np.float32, np.bool_)
    assert type(infos) is list
    assert all(type(info) is dict for info in infos)
    for array in (observations, rewards, dones):
        assert array.flags.writeable
    assert infos[0]["TimeLimit.truncated"] is False
    kept = [observations.copy(), rewards.copy(), dones.copy()]
    rewards += 1  # as PPO does at time limits
    infos[0]["mine"] = 1
    later = venv.step(np.zeros(3, int))
    assert np.array_equal(observations, kept[0])
    assert np.array_equal(dones, kept[2])
    assert later[2].tolist() == [True] * 3
    assert "mine" not in later[3][0]
    assert later[3][0]["TimeLimit.truncated"] is True
    venv.close()


def test_the_reward_dtype_can_be_chosen(way):
    """float32 rounds like DummyVecEnv, float64 keeps every digit."""
    fns = [functools.partial(ConstantEnv, spaces.Discrete(2), 0, 0.1)]
    for dtype, value in ((np.float32, float(np.float32(0.1))), (np.float64, 0.1)):
        venv = SharedMemVecEnv(fns, reward_dtype=dtype, **way)
        venv.reset()
        rewards = venv.step([0])[1]
        assert (rewards.dtype, rewards.item()) == (dtype, value)
        venv.close()
    with pytest.raises(errors.ConfigError, match="must be a floating dtype, got int32"):
        SharedMemVecEnv(fns, reward_dtype=np.int32)


def test_attributes_and_methods(way):
    """get_attr, set_attr, has_attr, env_method and env_is_wrapped, with every kind of index."""
    fns = [functools.partial(CountingEnv, i) for i in range(4)]
    fns[2] = lambda: Monitor(CountingEnv(2))
    venv = SharedMemVecEnv(fns, **way)
    assert venv.get_attr("env_id") == [0, 1, 2, 3]
    assert venv.get_attr("env_id", indices=[-1, 0, np.int64(2)]) == [3, 0, 2]
    assert venv.get_attr("env_id", np.int64(1)) == [1]
    assert venv.env_method("add", 1, b=2, indices=3) == [6]
    assert venv.get_attr("env_id", indices=iter([2, 1])) == [2, 1]
    assert venv.env_method("add", 1, b=2, indices=iter([3])) == [6]
    venv.set_attr("tag", [7, 8], indices=(0, 2))
    assert venv.has_attr("tag") is False
    assert venv.get_attr("tag", [0, 2]) == [[7, 8], [7, 8]]
    assert venv.has_attr("secret") is True
    assert venv.env_is_wrapped(Monitor) == [False, False, True, False]
    with pytest.raises(IndexError, match="there is no env 4: expected an index from 0 to 3"):
        venv.get_attr("env_id", 4)
    with pytest.raises(AttributeError):
        venv.get_attr("nope")
    venv.close()


class Outer(gymnasium.Wrapper):
    """Has attributes of its own, one by a property, and tells what each layer has of any."""

    level = "class"
    both = "outer"

    def __init__(self, env):
        super().__init__(env)
        self._doubled = 1

    @property
    def doubled(self):
        return 2 * self._doubled

    @doubled.setter
    def doubled(self, value):
        self._doubled = value

    def layers(self, name):
        """The values that the layers have themselves, from the outermost inwards; "-" for none."""
        layer, found = self, []
        while layer is not None:
            found.append(vars(layer).get(name, "-"))
            layer = getattr(layer, "env", None) if isinstance(layer, gymnasium.Wrapper) else None
        return found


class Forwarding(gymnasium.Wrapper):
    """Looks up what it does not have in its environment, as all wrappers once did; has one attribute in a slot."""

    __slots__ = ("slotted",)

    def __init__(self, env):
        super().__init__(env)
        self.middle = 0
        self.slotted = 0

    def __getattr__(self, name):
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)


def layered(env_id):
    env = CountingEnv(env_id)
    env.both = "inner"
    return Outer(Forwarding(env))


@pytest.mark.parametrize("value", [7, [7, 8, 9], (7, 8, 9), None])
@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("env_id", ["-", "-", "new"]),  # of the environment, seen through a wrapper that forwards
        ("middle", ["-", "new", "-"]),
        ("level", ["new", "-", "-"]),  # of the class
        ("both", ["new", "-", "inner"]),  # the outermost of two, which is the one that get_attr reads
        ("nowhere", ["new", "-", "-"]),
    ],
)
def test_an_attribute_is_set_where_it_exists(name, own, value, way):
    """For the chosen environments, to the value as it is, also a list as long as there are environments."""
    with SharedMemVecEnv([functools.partial(layered, i) for i in range(3)], **way) as venv:
        before = venv.env_method("layers", name)
        venv.set_attr(name, value, indices=[0, 2])
        assert venv.get_attr(name, [0, 2]) == [value, value]
        after = venv.env_method("layers", name)
        assert after[1] == before[1]
        for i in (0, 2):
            assert after[i] == [value if one == "new" else old for one, old in zip(own, before[i], strict=True)]
        venv.set_attr(name, value)
        assert venv.get_attr(name) == [value] * 3


def test_properties_and_slots_are_set_as_attributes_are(way):
    """By the setter of a wrapper, and into its slot; what has no setter is an error that leaves all usable."""
    with SharedMemVecEnv([functools.partial(layered, i) for i in range(3)], **way) as venv:
        venv.set_attr("doubled", 5)
        assert venv.get_attr("doubled") == [10] * 3
        spaces_of_envs = venv.env_method("layers", "observation_space")
        venv.set_attr("observation_space", 5)  # which Gymnasium's wrappers keep beside the environment's
        assert venv.get_attr("observation_space") == [5] * 3
        assert venv.env_method("layers", "observation_space") == spaces_of_envs
        venv.set_attr("slotted", 5)
        assert venv.get_attr("slotted") == [5] * 3
        assert venv.env_method("layers", "slotted") == [["-", "-", "-"]] * 3
        with pytest.raises(AttributeError, match="unwrapped"):
            venv.set_attr("unwrapped", 5)
        assert venv.get_attr("env_id") == [0, 1, 2]


def test_envs_are_there_without_workers_only():
    """`venv.envs` is the list of environments, as DummyVecEnv's; with workers the error says what to use."""
    serial = SharedMemVecEnv([functools.partial(CountingEnv, 0)], num_workers=0)
    assert serial.envs[0].env_id == 0
    serial.close()
    with SharedMemVecEnv([functools.partial(CountingEnv, 0)], start_method="fork") as venv:
        with pytest.raises(AttributeError, match="num_workers=0"):
            _ = venv.envs
        assert not hasattr(venv, "envs")


def test_metadata_and_render(way):
    """The environments' own frame rate reaches VecVideoRecorder; images come from each environment."""
    venv = make_vec_env("CartPole-v1", n_envs=3, vec_env_cls=SharedMemVecEnv, vec_env_kwargs=way)
    assert venv.metadata["render_fps"] == 50
    venv.reset()
    images = venv.get_images()
    assert [image.shape for image in images] == [(400, 600, 3)] * 3
    assert venv.render().shape == (800, 1200, 3)
    venv.close()


def frame(value):
    return np.full((2, 3, 3), value, np.uint8)


#: By name, what each environment renders, and which of it are images.
RENDERED = {
    "all": ([frame(1), frame(2), frame(3)], [0, 1, 2]),
    "lists": ([frame(1).tolist(), frame(2).tolist()], [0, 1]),
    "some": ([None, frame(1), "text", frame(2), [[1], [2, 3]], frame(3)[0], frame(4), {"a": 1}], [1, 3, 6]),
    "one": ([None, frame(1)], [1]),
    "none": ([None, None, None], []),
}


@pytest.mark.parametrize("name", RENDERED)
def test_what_is_no_image_is_left_out_of_the_picture(name, way):
    """The rest is what DummyVecEnv makes of the images alone; one warning says whom it leaves out."""
    rendered, images = RENDERED[name]
    with SharedMemVecEnv([functools.partial(RenderingEnv, i, v) for i, v in enumerate(rendered)], **way) as venv:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pictures = [venv.render(), venv.render("rgb_array")]
        assert_same(venv.get_images(), rendered)
    others = [i for i in range(len(rendered)) if i not in images]
    assert [str(warning.message).partition(":")[0] for warning in caught] == [
        f"render() leaves out envs {others}" for _ in others[:1]
    ]
    assert all(warning.filename == __file__ for warning in caught)
    if not images:
        assert pictures == [None, None]
        return
    dummy = DummyVecEnv([functools.partial(RenderingEnv, i, rendered[i]) for i in images])
    assert_same(pictures, [dummy.render()] * 2)


def test_the_types_of_what_is_no_image_are_in_the_warning(way):
    """Each once."""
    fns = [functools.partial(RenderingEnv, i, value) for i, value in enumerate((None, "a", "b"))]
    text = r"expected images \(height, width, channels\), got NoneType, str$"
    with SharedMemVecEnv(fns, **way) as venv, pytest.warns(UserWarning, match=text):
        assert venv.render() is None


def test_a_window_shows_the_picture(way, monkeypatch):
    """As SB3 has it, with OpenCV; nothing is shown where there is no image."""
    shown = []
    window = types.SimpleNamespace(imshow=lambda name, picture: shown.append((name, picture)), waitKey=lambda _: None)
    monkeypatch.setitem(sys.modules, "cv2", window)
    for rendered, images in (RENDERED["all"], RENDERED["none"]):
        fns = [functools.partial(RenderingEnv, i, value) for i, value in enumerate(rendered)]
        with SharedMemVecEnv(fns, **way) as venv, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert venv.render("human") is None
            if images:
                assert DummyVecEnv(fns).render("human") is None
    ours, dummys = shown
    assert ours[0] == dummys[0]
    assert np.array_equal(ours[1], dummys[1])


@pytest.mark.parametrize(
    ("render_mode", "mode"),
    [(made, asked) for made in (None, "human", "ansi") for asked in (None, "human", "rgb_array", "ansi")]
    + [("rgb_array", "ansi")],
)
def test_render_modes_are_sb3s(render_mode, mode, way):
    """Without images everything is left to SB3: the same warnings, the same result."""
    said = []
    for cls, options in ((SharedMemVecEnv, way), (DummyVecEnv, {})):
        venv = cls([functools.partial(RenderingEnv, i, None) for i in range(2)], **options)
        venv.render_mode = render_mode
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            said.append((venv.render(mode), [str(warning.message) for warning in caught]))
        venv.close()
    assert said[0] == said[1]


def test_calls_after_an_error(way):
    """An exception in step() is raised as itself; then everything but close() says that it is over, and why."""
    venv = SharedMemVecEnv(
        [functools.partial(FaultyEnv, i, "step" if i == 1 else "", "raise", 1) for i in range(3)], **way
    )
    venv.reset()
    with pytest.raises(KeyError, match="bad torque") as caught:
        venv.step(np.zeros(3, int))
    assert caught.value.__cause__.env_index == 1
    with pytest.raises(errors.BrokenError, match="bad torque"):
        venv.reset()
    venv.close()
    with pytest.raises(errors.ClosedError):
        venv.reset()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"copy": "no"}, "copy must be True or False, got 'no'"),
        ({"in_series": 2, "num_workers": 3}, "in_series=2 puts 4 environments on 2 workers, but num_workers=3"),
        ({"start_method": "spawn", "context": "fork"}, "two names of one option"),
        ({"start_method": "illegal"}, "cannot find context for 'illegal'"),
        ({"cpu_affinity": [10**6]}, "but this process may use"),
        ({"step_timeout": -1}, "step_timeout must be a positive number of seconds or None, got -1"),
        ({"close_timeout": None}, "close_timeout must be a number"),
        ({"threads_per_worker": 0}, "threads_per_worker must be at least 1"),
        ({"worker_env": {"A": 1}}, "mapping of strings to strings"),
    ],
)
def test_wrong_options_say_what_was_expected(options, text):
    """Each is a ConfigError, which is a ValueError, before anything has started."""
    with pytest.raises(errors.ConfigError, match=text):
        SharedMemVecEnv([functools.partial(CountingEnv, i) for i in range(4)], **options)


def test_an_environment_in_place_of_a_factory():
    """The error says to pass a function."""
    with pytest.raises(errors.FactoryError, match=r"env_fns\[0\] must be a function .* got a CountingEnv"):
        SharedMemVecEnv([CountingEnv(0)])
    with pytest.raises(errors.ConfigError, match="env_fns is empty"):
        SharedMemVecEnv([])


# ---------------------------------------------------------------- learning


@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_on_policy_learning_equals_learning_on_dummy(algorithm):
    """Weights after training are the same bit for bit."""
    weights = []
    for cls, options in ((DummyVecEnv, {}), (SharedMemVecEnv, WAYS["2 workers"])):
        venv = make_vec_env("CartPole-v1", n_envs=4, seed=0, vec_env_cls=cls, vec_env_kwargs=options)
        sizes = {"n_steps": 16} | ({"batch_size": 32} if algorithm is PPO else {})
        model = algorithm("MlpPolicy", venv, seed=0, device="cpu", **sizes).learn(256)
        weights.append({name: value.numpy().copy() for name, value in model.policy.state_dict().items()})
        venv.close()
    assert_same(dict(weights[1]), dict(weights[0]))


@pytest.mark.parametrize(("algorithm", "env_id"), [(SAC, "Pendulum-v1"), (DQN, "CartPole-v1")])
def test_off_policy_learning_equals_learning_on_dummy(algorithm, env_id):
    """The same, for replay buffers and float32 actions."""
    weights = []
    for cls, options in ((DummyVecEnv, {}), (SharedMemVecEnv, WAYS["2 workers"])):
        venv = make_vec_env(env_id, n_envs=3, seed=0, vec_env_cls=cls, vec_env_kwargs=options)
        model = algorithm("MlpPolicy", venv, seed=0, learning_starts=30, buffer_size=500, device="cpu").learn(150)
        weights.append({name: value.numpy().copy() for name, value in model.policy.state_dict().items()})
        venv.close()
    assert_same(dict(weights[1]), dict(weights[0]))


def test_hindsight_replay_learns():
    """HER asks one worker for compute_reward with whole batches."""
    venv = SharedMemVecEnv([lambda: BitFlippingEnv(n_bits=4, continuous=True)] * 2, start_method="fork")
    model = SAC(
        "MultiInputPolicy", venv, replay_buffer_class=HerReplayBuffer, learning_starts=50, buffer_size=500, device="cpu"
    )
    model.learn(120)
    assert model.num_timesteps == 120
    venv.close()


def test_wrappers_wrap_it(tmp_path):
    """VecNormalize, VecMonitor, VecFrameStack, VecTransposeImage and VecCheckNan give what they give on DummyVecEnv."""
    image = spaces.Box(0, 255, (12, 8, 3), np.uint8)
    cases = {
        "normalize": (lambda v: VecNormalize(v), SPACES["box"]),
        "monitor": (lambda v: VecMonitor(v), SPACES["box"]),
        "stack": (lambda v: VecFrameStack(v, 3), image),
        "transpose": (lambda v: VecTransposeImage(v), image),
        "nan": (lambda v: VecCheckNan(v, raise_exception=True), SPACES["box"]),
        "all": (lambda v: VecNormalize(VecMonitor(VecCheckNan(v)), norm_obs=True), SPACES["double"]),
    }
    for wrap, space in cases.values():
        fns = [functools.partial(SpaceEnv, space, i) for i in range(4)]
        ours, dummys = (trace(wrap(v), 40) for v in (SharedMemVecEnv(fns, start_method="fork"), DummyVecEnv(fns)))
        assert_same(ours, dummys)


def test_videos_are_recorded(tmp_path, monkeypatch):
    """VecVideoRecorder writes a file from the workers' images."""
    pytest.importorskip("moviepy")
    # Its progress bar would start a thread that never ends, of which later forks would rightly be warned.
    monkeypatch.setattr(pytest.importorskip("tqdm").tqdm, "monitor_interval", 0)
    venv = make_vec_env("CartPole-v1", n_envs=2, vec_env_cls=SharedMemVecEnv)
    venv = VecVideoRecorder(venv, str(tmp_path), record_video_trigger=lambda step: step == 0, video_length=10)
    venv.reset()
    for _ in range(12):
        venv.step([venv.action_space.sample() for _ in range(2)])
    venv.close()
    assert len(list(tmp_path.glob("*.mp4"))) == 1


def test_nothing_warns_in_training_and_evaluation():
    """From construction to evaluation not one warning, on the default options."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        venv = make_vec_env("CartPole-v1", n_envs=2, vec_env_cls=SharedMemVecEnv)
        model = PPO("MlpPolicy", venv, n_steps=32, batch_size=32, n_epochs=1, device="cpu").learn(64)
        mean, _ = evaluate_policy(model, venv, n_eval_episodes=2)
        venv.close()
    assert mean > 0


def test_the_swap_of_the_readme_trains():
    """The swap that the README shows: an id, in_series, forkserver, automatic placement."""
    venv = make_vec_env(
        "BipedalWalker-v3",
        n_envs=4,
        vec_env_cls=SharedMemVecEnv,
        vec_env_kwargs={"in_series": 2, "start_method": "forkserver", "cpu_affinity": "auto"},
    )
    assert venv.num_workers == 2
    model = PPO("MlpPolicy", venv, n_steps=32, batch_size=64, n_epochs=1, device="cpu").learn(128)
    assert model.num_timesteps == 128
    assert isinstance(venv.observation_space, gymnasium.spaces.Box)
    venv.close()


def test_learning_goes_on_when_workers_are_killed():
    """PPO finishes, its episodes that were cut off count as truncated, and nobody waits for the dead."""
    killed = []

    class Killer(BaseCallback):
        def _on_step(self):
            if self.n_calls in (40, 90, 140):
                pid = self.training_env.env_method("get_pid", indices=self.n_calls % 4)[0]
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)
            restarted = [info for info in self.locals["infos"] if "worker_restarted" in info]
            assert all(info["TimeLimit.truncated"] and "terminal_observation" in info for info in restarted)
            self.found = getattr(self, "found", 0) + len(restarted)
            return True

    venv = SharedMemVecEnv([CartPoleWithPid] * 4, num_workers=2, on_failure="restart")
    killer = Killer()
    model = PPO("MlpPolicy", venv, n_steps=64, device="cpu", seed=0).learn(800, callback=killer)
    assert model.num_timesteps >= 800
    assert (len(killed), killer.found) == (3, 6)
    venv.close()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("options", [{"max_episodes_per_worker": 3}, {"on_failure": "restart"}])
def test_monitors_files_outlive_a_worker(options, method, tmp_path):
    """Every episode that has ended is in its file, once, below one header."""
    venv = make_vec_env(
        "CartPole-v1",
        n_envs=3,
        seed=1,
        monitor_dir=str(tmp_path),
        vec_env_cls=SharedMemVecEnv,
        vec_env_kwargs={"num_workers": 2, "start_method": method, **options},
    )
    venv.reset()
    told = []
    pids = set()
    for index in range(150):
        if "on_failure" in options and index == 75:
            os.kill(venv._engine._pool.workers[0].process.pid, 9)
        _, _, _, infos = venv.step([index % 2] * 3)
        told += [(info["episode"]["r"], info["episode"]["l"]) for info in infos if "episode" in info]
        pids |= {worker.process.pid for worker in venv._engine._pool.workers}
    venv.close()
    found = []
    for path in tmp_path.iterdir():
        comment, header, *rows = path.read_text().splitlines()
        assert comment.startswith("#{")
        assert header == "r,l,t"
        found += [(float(row.split(",")[0]), int(row.split(",")[1])) for row in rows]
    assert sorted(found) == sorted(told)
    assert len(told) > 5
    assert len(pids) > 2
    assert len(list(tmp_path.iterdir())) == 3
