"""Rollouts of PPO on BipedalWalker-v3, collected plainly and from two halves in turn; then a training with the latter.

python examples/pipelined_ppo.py [--timesteps 1000000] [--n-envs 32] [--rollouts 10]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import safe_mean

from fastvec import SharedMemVecEnv
from fastvec.sb3 import PipelinedPPO


class Stopwatch(BaseCallback):
    """Measures how many steps a second each rollout has, without the updates between them."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def _on_rollout_start(self) -> None:
        self.started, self.before = time.perf_counter(), self.num_timesteps

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.rates.append((self.num_timesteps - self.before) / (time.perf_counter() - self.started))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=1_000_000)
    parser.add_argument("--n-envs", type=int, default=32)
    parser.add_argument("--rollouts", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)  # PyTorch's idle threads spin, and would take the CPUs from the workers
    rollout = min(2048, options.timesteps)
    models, stopwatches = [], []
    workers = min(len(os.sched_getaffinity(0)), options.n_envs // 2)  # two environments for each, or more
    for algorithm in (PPO, PipelinedPPO):
        how = {"vec_env_cls": SharedMemVecEnv, "vec_env_kwargs": {"num_workers": workers}}
        venv = make_vec_env("BipedalWalker-v3", options.n_envs, seed=0, **how)
        models.append(algorithm("MlpPolicy", venv, n_steps=rollout // options.n_envs, n_epochs=1, seed=0, device="cpu"))
        stopwatches.append(Stopwatch())
    print(f"{options.n_envs} environments on {workers} workers")
    for _ in range(options.rollouts):  # in turn, as other programs may need the CPUs as well
        for model, stopwatch in zip(models, stopwatches, strict=True):
            model.learn(rollout, callback=stopwatch, reset_num_timesteps=False)
    for model, stopwatch in zip(models, stopwatches, strict=True):
        print(f"{type(model).__name__:12}  {statistics.median(stopwatch.rates):.0f} steps a second")
    plain, pipelined = models
    plain.env.close()
    pipelined.n_epochs = 10
    pipelined.learn(options.timesteps)
    pipelined.env.close()
    mean = safe_mean([episode["r"] for episode in pipelined.ep_info_buffer])
    print(f"PipelinedPPO, with the updates: {pipelined.num_timesteps} steps, mean return {mean:.1f}")


if __name__ == "__main__":
    main()
