"""Does learning suffer where workers are killed all the time, and replaced?

Trains SB3's PPO twice with the same seed and the same number of steps, on ``SharedMemVecEnv`` with
``on_failure="restart"``: once undisturbed, once while a worker is killed every few seconds. Then
evaluates both policies on the same episodes.

    python benchmarks/learning_with_kills.py [--env CartPole-v1] [--steps 200000] [--every 3]
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import threading
import time
from typing import Any

import gymnasium
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from fastvec import SharedMemVecEnv


class Reaper(threading.Thread):
    """Kills one worker, drawn at random, every so many seconds."""

    def __init__(self, venv: SharedMemVecEnv, every: float) -> None:
        super().__init__(daemon=True)
        self.venv, self.every, self.kills = venv, every, 0
        self.enough = threading.Event()

    def run(self) -> None:
        draw = random.Random(0)
        while not self.enough.wait(self.every):
            worker = draw.choice(self.venv._engine._pool.workers)
            try:
                os.kill(worker.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.kills += 1


class Watch(BaseCallback):
    """Shows how far the training is, and counts episodes that were cut off."""

    def __init__(self, progress: Progress, task: Any) -> None:
        super().__init__()
        self.progress, self.task, self.cut_off = progress, task, 0

    def _on_step(self) -> bool:
        self.cut_off += sum("worker_restarted" in info for info in self.locals["infos"])
        self.progress.update(self.task, completed=self.num_timesteps)
        return True


def train(args: argparse.Namespace, every: float | None) -> dict[str, Any]:
    """Train and evaluate once; with a kill every so many seconds, or undisturbed."""
    venv = make_vec_env(
        args.env,
        n_envs=args.n,
        seed=1,
        vec_env_cls=SharedMemVecEnv,
        vec_env_kwargs={"num_workers": args.workers, "on_failure": "restart", "max_restarts": 10**6},
    )
    reaper = Reaper(venv, every or 1.0)
    if every is not None:
        reaper.start()
    started = time.perf_counter()
    with Progress() as progress:
        label = "undisturbed" if every is None else f"a kill every {every:g} s"
        watch = Watch(progress, progress.add_task(label, total=args.steps))
        model = PPO("MlpPolicy", venv, seed=1, n_steps=2048 // args.n).learn(args.steps, callback=watch)
    seconds = time.perf_counter() - started
    reaper.enough.set()
    if every is not None:
        reaper.join()
    venv.close()
    env = Monitor(gymnasium.make(args.env))
    env.reset(seed=100)
    mean, spread = evaluate_policy(model, env, n_eval_episodes=args.episodes)
    return {
        "label": label,
        "kills": reaper.kills,
        "cut off": watch.cut_off,
        "seconds": seconds,
        "mean": mean,
        "spread": spread,
    }


def main() -> None:
    """Train both, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--n", type=int, default=8, help="environments")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two kills")
    parser.add_argument("--episodes", type=int, default=50, help="to evaluate with")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("fastvec").setLevel(logging.ERROR)  # a line a replacement
    table = Table(title=f"PPO on {args.env}, {args.steps:,} steps, {args.n} environments on {args.workers} workers")
    for column in (
        "",
        "workers killed",
        "episodes cut off",
        "seconds",
        f"return, mean of {args.episodes}",
        "deviation",
    ):
        table.add_column(column, justify="left" if not column else "right")
    for every in (None, args.every):
        row = train(args, every)
        figures = (f"{row['seconds']:.0f}", f"{row['mean']:.1f}", f"{row['spread']:.1f}")
        table.add_row(row["label"], str(row["kills"]), str(row["cut off"]), *figures)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
