"""PPO on BipedalWalker-v3: only the class that steps the environments is not Stable-Baselines3's own.

python examples/ppo_bipedalwalker.py [--timesteps 1000000] [--n-envs 16]
"""

from __future__ import annotations

import argparse
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import safe_mean

from fastvec import SharedMemVecEnv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=1_000_000)
    parser.add_argument("--n-envs", type=int, default=16)
    options = parser.parse_args()
    # PyTorch's idle threads spin, and would take the CPUs from the workers; so small a network does not need them.
    torch.set_num_threads(1)
    # Without options: as many workers as usable CPUs, each with its share of the environments.
    venv = make_vec_env("BipedalWalker-v3", n_envs=options.n_envs, seed=0, vec_env_cls=SharedMemVecEnv)
    print(f"{venv.num_envs} environments on {venv.num_workers} workers")
    rollout = min(2048, options.timesteps)
    model = PPO("MlpPolicy", venv, n_steps=rollout // options.n_envs, gamma=0.999, seed=0, device="cpu")
    started = time.perf_counter()
    model.learn(options.timesteps)
    seconds = time.perf_counter() - started
    venv.close()
    print(f"{model.num_timesteps} steps, {model.num_timesteps / seconds:.0f} a second with the updates")
    print(f"mean return of the last {len(model.ep_info_buffer)} episodes: ", end="")
    print(f"{safe_mean([episode['r'] for episode in model.ep_info_buffer]):.1f}")


if __name__ == "__main__":
    main()
