"""How many environment steps a second, against Stable-Baselines3's own classes?

All contenders live side by side and take turns in short rounds, so that a noisy machine hits them
alike; the ratios are of medians over the rounds. Every contender gets the same seeds and actions,
and the last observations are compared, so that nobody wins by doing less.

    python benchmarks/step_vs_sb3.py [--envs CartPole-v1 ...] [--n 32] [--workers 2] [--rounds 9] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from fastvec import SharedMemVecEnv, __version__

#: Vectorized steps in one turn of the cheapest environment; others get fewer.
STEPS = {"CartPole-v1": 300, "HalfCheetah-v5": 100, "BipedalWalker-v3": 60, "Humanoid-v5": 30}


def contenders(workers: int, start_method: str) -> dict[str, Callable[[list[Any]], VecEnv]]:
    return {
        "DummyVecEnv": DummyVecEnv,
        "SubprocVecEnv": partial(SubprocVecEnv, start_method=start_method),
        "SharedMemVecEnv": partial(SharedMemVecEnv, num_workers=workers, start_method=start_method),
        "SharedMemVecEnv(0)": partial(SharedMemVecEnv, num_workers=0),
    }


def compare(env_id: str, n: int, workers: int, rounds: int, start_method: str) -> dict[str, Any]:
    """Steps a second of each contender, per round."""
    steps = STEPS.get(env_id, 50)
    venvs = {
        name: make([partial(gymnasium.make, env_id)] * n) for name, make in contenders(workers, start_method).items()
    }
    space = venvs["DummyVecEnv"].action_space
    space.seed(0)
    actions = [np.array([space.sample() for _ in range(n)]) for _ in range(steps)]
    last: dict[str, Any] = {}
    for venv in venvs.values():
        venv.seed(0)
        venv.reset()
    rates: dict[str, list[float]] = {name: [] for name in venvs}
    for turn in range(rounds + 1):
        for name, venv in venvs.items():
            for action in actions[: len(actions) // 10]:  # the caches and cores are still its predecessor's
                venv.step(action)
            started = time.perf_counter()
            for action in actions:
                last[name] = venv.step(action)[0]
            seconds = time.perf_counter() - started
            if turn:  # the first warms up
                rates[name].append(steps * n / seconds)
    for name, observations in last.items():
        assert np.array_equal(observations, last["DummyVecEnv"]), f"{name} computed something else"
    for venv in venvs.values():
        venv.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=["CartPole-v1", "HalfCheetah-v5", "BipedalWalker-v3"])
    parser.add_argument("--n", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--start-method", default="fork")
    parser.add_argument("--json")
    options = parser.parse_args()
    results = {}
    print(f"{'environment':18} {'contender':20} {'steps/s':>10} {'spread':>8} {'x Subproc':>10} {'x Dummy':>8}")
    for env_id in options.envs:
        rates = compare(env_id, options.n, options.workers, options.rounds, options.start_method)
        medians = {name: statistics.median(values) for name, values in rates.items()}
        for name, median in medians.items():
            spread = (max(rates[name]) - min(rates[name])) / median
            print(
                f"{env_id:18} {name:20} {median:10,.0f} {spread:8.0%} {median / medians['SubprocVecEnv']:10.2f} "
                f"{median / medians['DummyVecEnv']:8.2f}",
                flush=True,
            )
        results[env_id] = {"medians": medians, "rates": rates}
    if options.json:
        machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        versions = {"fastvec": __version__, "numpy": np.__version__, "gymnasium": gymnasium.__version__}
        with open(options.json, "w") as file:
            json.dump(
                {"command": sys.argv, "machine": machine, "versions": versions, "results": results}, file, indent=1
            )


if __name__ == "__main__":
    main()
