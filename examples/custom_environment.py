"""An environment of your own, written in the script that trains on it; and what you see when it has a bug.

There is no ``if __name__ == "__main__"``: workers do not import this file, the class is sent to them. So what an
environment needs must be in the class or its factory; nothing else of this file runs in a worker.

python examples/custom_environment.py [--timesteps 20000]
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env

from fastvec import SharedMemVecEnv


class Corridor(gymnasium.Env):
    """Walk right to the end. Leaving by the left end is a bug, which ``safe=False`` keeps."""

    def __init__(self, length: int = 8, safe: bool = True) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, length, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length, self.safe, self.place = length, safe, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(self.length // 2))
        return self._observation(), {}

    def step(self, action):
        self.place += 1 if action == 1 else -1
        if self.safe:
            self.place = max(self.place, 0)
        elif self.place < 0:
            raise RuntimeError(f"fell out of the corridor at {self.place}")
        arrived = self.place == self.length
        return self._observation(), 1.0 if arrived else -0.05, arrived, False, {}

    def _observation(self):
        return np.array([self.place], np.float32)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--timesteps", type=int, default=20_000)
options = parser.parse_args()

venv = make_vec_env(Corridor, n_envs=8, seed=0, vec_env_cls=SharedMemVecEnv)
model = A2C("MlpPolicy", venv, n_steps=16, seed=0, device="cpu").learn(options.timesteps)
lengths = [episode["l"] for episode in model.ep_info_buffer]
print(f"{model.num_timesteps} steps; the last {len(lengths)} episodes took {np.mean(lengths):.1f} steps on average")
venv.close()

# The exception of an environment arrives as itself. Its cause says where it came from.
venv = SharedMemVecEnv([lambda: Corridor(safe=False)] * 8)
venv.reset()
try:
    while True:
        venv.step(np.zeros(8, np.int64))
except RuntimeError as error:
    where = error.__cause__
    print(f"env {where.env_index} on worker {where.worker} failed in {where.command}(): {error}")
    print(where.traceback.splitlines()[-2].strip())
finally:
    venv.close()
