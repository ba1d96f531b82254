"""With copy=False learners learn what they learn from copies, bit for bit, though freed memory is spoilt at once."""

from __future__ import annotations

import contextlib
import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import vector as wrappers
from lending import lend_everything
from test_engine import assert_same
from toys import CountingEnv, SpaceEnv

pytest.importorskip("stable_baselines3")

from stable_baselines3 import A2C, DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecCheckNan, VecFrameStack, VecNormalize, VecTransposeImage
from test_baselines import OldEnv, Oracle, collect

from fastvec import SharedMemVecEnv, SharedMemVectorEnv, baselines

WAYS = {"serial": {"num_workers": 0}, "2 workers": {"num_workers": 2, "start_method": "fork"}}


@pytest.fixture(autouse=True)
def lent_and_spoilt(monkeypatch):
    lend_everything(monkeypatch)


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


class PictureEnv(gymnasium.Env):
    """An image that shows how far the episode is, in one buffer that is used again."""

    def __init__(self):
        self.observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.action_space = spaces.Discrete(3)
        self.buffer = np.zeros((36, 36, 1), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.buffer[...] = 0, 0
        return self.buffer, {}

    def step(self, action):
        self.count += 1
        self.buffer[...] = self.np_random.integers(0, 256, self.buffer.shape, np.uint8) // 4 + 10 * int(action)
        return self.buffer, float(self.buffer.mean()), self.count >= 9, False, {}


class MixedEnv(PictureEnv):
    """The image beside two numbers of other dtypes."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict(
            image=self.observation_space,
            count=spaces.Box(0, 10, (1,), np.int64),
            noise=spaces.Box(0, 1, (2,), np.float32),
        )

    def mixed(self, image):
        return {"image": image, "count": np.array([self.count]), "noise": self.np_random.random(2, np.float32)}

    def reset(self, *, seed=None, options=None):
        image, info = super().reset(seed=seed)
        return self.mixed(image), info

    def step(self, action):
        image, *rest = super().step(action)
        return self.mixed(image), *rest


def learned(make, copy):
    """The parameters of a policy after training."""
    model = make(copy)
    weights = {name: value.numpy().copy() for name, value in model.policy.state_dict().items()}
    model.get_env().close()
    return weights


def assert_learns_the_same(make):
    assert_same(learned(make, False), learned(make, True))


ON_POLICY = {"n_steps": 16, "device": "cpu", "seed": 0}
PPO_ONLY = ON_POLICY | {"batch_size": 24}
OFF_POLICY = {"learning_starts": 20, "buffer_size": 300, "device": "cpu", "seed": 0}
SB3 = {
    "PPO": (PPO, "MlpPolicy", "CartPole-v1", PPO_ONLY, None),
    "A2C": (A2C, "MlpPolicy", "CartPole-v1", ON_POLICY, None),
    "SAC": (SAC, "MlpPolicy", "Pendulum-v1", OFF_POLICY, None),
    "DQN": (DQN, "MlpPolicy", "CartPole-v1", OFF_POLICY, None),
    "PPO of images": (PPO, "CnnPolicy", PictureEnv, PPO_ONLY, None),
    "PPO of stacked images": (PPO, "CnnPolicy", PictureEnv, PPO_ONLY, lambda v: VecFrameStack(v, 3)),
    "PPO of turned images": (PPO, "CnnPolicy", PictureEnv, PPO_ONLY, VecTransposeImage),
    "PPO of normalized observations": (PPO, "MlpPolicy", "Pendulum-v1", PPO_ONLY, VecNormalize),
    "SAC of normalized observations": (SAC, "MlpPolicy", "Pendulum-v1", OFF_POLICY, VecNormalize),
    "A2C of checked observations": (A2C, "MlpPolicy", "CartPole-v1", ON_POLICY, VecCheckNan),
    "PPO of dicts": (PPO, "MultiInputPolicy", MixedEnv, PPO_ONLY, None),
    "DQN of stacked dicts": (DQN, "MultiInputPolicy", MixedEnv, OFF_POLICY, lambda v: VecFrameStack(v, 2)),
}


@pytest.mark.parametrize("name", SB3)
def test_policies_of_sb3_are_those_learned_from_copies(name, way):
    """Weights after training are equal bit for bit, while all memory that is not lent is garbage."""
    algorithm, policy, env_id, options, wrap = SB3[name]

    def make(copy):
        venv = make_vec_env(env_id, 3, seed=0, vec_env_cls=SharedMemVecEnv, vec_env_kwargs={"copy": copy, **way})
        return algorithm(policy, wrap(venv) if wrap else venv, **options).learn(120)

    assert_learns_the_same(make)


def test_hindsight_replay_learns_the_same(way):
    """Goals of the past are drawn from what was stored while it was lent."""

    def make(copy):
        fns = [functools.partial(BitFlippingEnv, n_bits=4, continuous=True)] * 2
        venv = SharedMemVecEnv(fns, copy=copy, **way)
        venv.seed(0)
        return SAC("MultiInputPolicy", venv, replay_buffer_class=HerReplayBuffer, **OFF_POLICY).learn(60)

    assert_learns_the_same(make)


def test_evaluation_and_saving_take_what_is_lent(way, tmp_path):
    """`evaluate_policy` returns what it returns with copies; a model with lent observations can be saved."""
    found = []
    for copy in (True, False):
        venv = make_vec_env("CartPole-v1", 3, seed=0, vec_env_cls=SharedMemVecEnv, vec_env_kwargs={"copy": copy, **way})
        model = PPO("MlpPolicy", venv, **PPO_ONLY).learn(48)
        model.save(tmp_path / "model")
        found.append(evaluate_policy(model, venv, 5, return_episode_rewards=True))
        assert_same(PPO.load(tmp_path / "model")._last_obs, model._last_obs)
        venv.close()
    assert_same(*found)


def test_rollouts_of_baselines_are_those_collected_from_copies(way):
    """As PPO2's runner collects them, from environments of old Gym's API."""
    fns = [functools.partial(OldEnv, i) for i in range(12)]
    oracle = Oracle(fns)
    oracle.action_space = oracle.envs[0].action_space
    options = {"num_workers": way["num_workers"], "context": "fork"}
    with baselines.SharedMemVecEnv(fns, copy=False, **options) as venv:
        assert_same(collect(venv, 20, 5), collect(oracle, 20, 5))
        assert venv.reset().base is not None


GYMNASIUM = {
    "none": lambda venv: venv,
    "statistics": wrappers.RecordEpisodeStatistics,
    "normalized": wrappers.NormalizeObservation,
    "flattened": wrappers.FlattenObservation,
    "rescaled": lambda venv: wrappers.TransformObservation(venv, lambda obs: obs * 2, venv.observation_space),
    "lists": wrappers.DictInfoToList,
}


@pytest.mark.parametrize("name", GYMNASIUM)
def test_wrappers_of_gymnasium_see_what_they_see_in_copies(name, way):
    """Each step's results, and those that were kept."""

    def run(copy):
        fns = [functools.partial(CountingEnv, i, 4) for i in range(3)]
        with contextlib.closing(GYMNASIUM[name](SharedMemVectorEnv(fns, copy=copy, **way))) as venv:
            found = [venv.reset(seed=1)[0]]
            for _ in range(15):
                observations, rewards, terminations, truncations, infos = venv.step(np.zeros(3, np.int64))
                if isinstance(infos, dict):
                    infos.pop("episode", None)  # has wall-clock times
                found.append((observations, rewards, terminations, truncations, infos))
            return found

    assert_same(run(False), run(True))


def test_dicts_and_tuples_are_lent_leaf_by_leaf(way):
    """Through Gymnasium's face, nested; strings stay a tuple."""
    space = spaces.Dict(a=spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Discrete(5)]), text=spaces.Text(5))
    found = []
    for copy in (True, False):
        fns = [functools.partial(SpaceEnv, space, i) for i in range(3)]
        with SharedMemVectorEnv(fns, copy=copy, **way) as venv:
            results = [venv.reset(seed=3)[0]]
            results += [venv.step(np.zeros((3, 2), np.float32))[0] for _ in range(12)]
            assert [array.base is not None for array in results[1]["a"]] == [not copy] * 2
            found.append(results)
    assert_same(*found)
