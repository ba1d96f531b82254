"""Environments that take unequal times: a learner that waits for all of them, and one that takes the first half.

python examples/async_batches.py
"""

from __future__ import annotations

import argparse
import time

import gymnasium
import numpy as np

from fastvec import SharedMemVectorEnv


class Unequal(gymnasium.Env):
    """Waits in each step, for a long time now and then, as a simulator or a remote service may."""

    observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        time.sleep(0.02 if self.np_random.random() < 0.1 else 0.001)
        return np.array([self.count], np.float32), 1.0, False, self.count == 50, {}


def choose(observations):
    """What a policy would do."""
    return (observations[:, 0] % 2).astype(np.int64)


def in_step(venv, steps):
    """All environments, ``steps`` in all."""
    observations, _ = venv.reset(seed=0)
    for _ in range(steps // venv.num_envs):
        observations, *_ = venv.step(choose(observations))
    return steps // venv.num_envs * venv.num_envs


def first_half(venv, steps):
    """Whoever is ready, at least half of them at a time."""
    observations, _ = venv.reset(seed=0)
    venv.send(choose(observations))
    done = 0
    while done < steps:
        observations, _rewards, _terminations, _truncations, infos = venv.recv(min_envs=venv.num_envs // 2)
        done += len(observations)
        venv.send(choose(observations), infos["env_ids"])
    return done + len(venv.recv(min_envs=venv.num_envs)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4000)
    steps = parser.parse_args().steps
    with SharedMemVectorEnv([Unequal] * 8, in_series=1) as venv:
        for name, collect in (("all in step", in_step), ("the first half", first_half)):
            began = time.perf_counter()
            done = collect(venv, steps)
            print(f"{name}: {done / (time.perf_counter() - began):.0f} steps a second")


if __name__ == "__main__":
    main()
