"""Does Baselines' own PPO2 runner collect from SharedMemVecEnv what it collects from DummyVecEnv, array for array?

Both the runner and DummyVecEnv are Baselines' own, from a checkout; see the README beside it. The model is a stand-in
whose actions depend on every observation, so that one different bit would lead elsewhere.

FASTVEC_PEERS_BASELINES=<checkout> python baselines_runner.py
"""

from __future__ import annotations

import functools
import os

os.environ["FASTVEC_PEERS_REPLACE"] = "SubprocVecEnv ShmemVecEnv"
import baselines_plugin  # noqa: F401
import gymnasium
import numpy as np
from baselines.common.vec_env.dummy_vec_env import DummyVecEnv
from baselines.common.vec_env.vec_env import VecEnv
from baselines.ppo2.runner import Runner

from fastvec.baselines import SharedMemVecEnv

N, NSTEPS, ROLLOUTS = 12, 50, 4


class OldApi(gymnasium.Wrapper):
    """An environment in old Gym's API, with the `episode` that Baselines' Monitor adds at the end."""

    def __init__(self, env_id, seed):
        super().__init__(gymnasium.make(env_id))
        self.env.reset(seed=seed)

    def reset(self):
        self.rewards = []
        return self.env.reset()[0]

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.rewards.append(float(reward))
        if terminated or truncated:
            info["episode"] = {"r": round(sum(self.rewards), 6), "l": len(self.rewards)}
        return observation, reward, terminated or truncated, info


class Model:
    """Chooses actions by the bytes of the observations."""

    initial_state = None

    def __init__(self, space):
        self.space = space

    def step(self, obs, S=None, M=None):
        sums = obs.view(np.uint8).reshape(len(obs), -1).sum(axis=1, dtype=np.int64)
        if isinstance(self.space, gymnasium.spaces.Discrete):
            actions = sums % self.space.n
        else:
            actions = np.resize(np.sin(sums), (*self.space.shape, len(obs))).T.astype(np.float32)
        return actions, self.value(obs), None, np.cos(sums)

    def value(self, obs, S=None, M=None):
        return obs.sum(axis=1, dtype=np.float32)


def collect(venv):
    """The results of some rollouts."""
    assert isinstance(venv, VecEnv)
    runner = Runner(env=venv, model=Model(venv.action_space), nsteps=NSTEPS, gamma=0.99, lam=0.95)
    results = [runner.run() for _ in range(ROLLOUTS)]
    venv.close()
    return results


def same(one, two):
    """Whether two lists of results are equal, dtypes included."""
    for mine, theirs in zip(one, two, strict=True):
        *arrays, states, episodes = mine
        *other_arrays, other_states, other_episodes = theirs
        if (states, episodes) != (other_states, other_episodes):
            return False
        for array, other in zip(arrays, other_arrays, strict=True):
            if (array.dtype, array.shape, array.tobytes()) != (other.dtype, other.shape, other.tobytes()):
                return False
    return True


WAYS = [{"in_series": k, "context": "forkserver"} for k in (1, 3, 4, 6)]
WAYS += [{"in_series": 6}, {"num_workers": 2, "context": "fork"}, {"num_workers": 0}]
for env_id in ("CartPole-v1", "Pendulum-v1"):
    env_fns = [functools.partial(OldApi, env_id, seed) for seed in range(N)]
    expected = collect(DummyVecEnv(env_fns))
    episodes = sum(len(result[-1]) for result in expected)
    print(f"{env_id}: {N * NSTEPS * ROLLOUTS} steps, {episodes} episodes ended")
    for options in WAYS:
        print(f"  {options}:", "equal" if same(collect(SharedMemVecEnv(env_fns, **options)), expected) else "DIFFERENT")
