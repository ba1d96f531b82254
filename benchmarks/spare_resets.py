"""How long does a step take, with the resets of ended episodes in it and with environments that are reset ahead?

Nothing is reset in idle time here, which is the least favourable case: all resets happen in steps. Of each step the CPU
time of the slower worker is taken, for which all wait in lockstep, and of several runs of the same episodes the least,
so that other programs on the machine do not count.

    python benchmarks/spare_resets.py [--env BipedalWalker-v3] [--n 8] [--spares 0 4 16] [--steps 2000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import functools
import time
from typing import Any

import gymnasium
import numpy as np

from fastvec import SharedMemVectorEnv
from fastvec._core.runner import EnvRunner
from fastvec._core.spares import Spares

#: In a worker, which is forked: seconds of its CPU in each step so far.
SECONDS: list[float] = []


def timed(step: Any) -> Any:
    """``EnvRunner.step``, which tells how long it took."""

    @functools.wraps(step)
    def wrapper(self: EnvRunner, actions: Any) -> Any:
        started = time.thread_time()
        news = step(self, actions)
        SECONDS.append(time.thread_time() - started)
        return news

    return wrapper


def seconds(env: Any) -> list[float]:
    """What the worker of an environment has measured."""
    return SECONDS


def run(env_id: str, n: int, spares: int, steps: int) -> np.ndarray:
    """Milliseconds of each step, of the slower worker; always the same episodes."""
    factories = [functools.partial(gymnasium.make, env_id)] * n
    with SharedMemVectorEnv(
        factories, num_workers=2, start_method="fork", autoreset_mode="SameStep", spare_resets=spares
    ) as venv:
        venv.action_space.seed(0)
        venv.reset(seed=1)
        for _ in range(steps):
            venv.step(venv.action_space.sample())
        return np.max(venv._engine.call("seconds", seconds, env_ids=[0, n - 1]), axis=0) * 1e3


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="BipedalWalker-v3")
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--spares", type=int, nargs="+", default=[0, 4, 16])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    EnvRunner.step = timed(EnvRunner.step)  # type: ignore[method-assign]
    Spares.want_time = property(lambda self: False)  # type: ignore[assignment]
    runs: dict[int, list[np.ndarray]] = {spares: [] for spares in args.spares}
    for _ in range(args.rounds):
        for spares in args.spares:
            runs[spares].append(run(args.env, args.n, spares, args.steps))
    print(f"{args.env}, {args.n} environments, 2 workers, {args.steps} steps, ms:   mean  median    99 %  longest")
    for spares in args.spares:
        times = np.min(runs[spares], axis=0)
        print(
            f"spare_resets={spares:<3} {times.mean():48.2f} {np.median(times):7.2f} {np.percentile(times, 99):7.2f} "
            f"{times.max():8.1f}"
        )


if __name__ == "__main__":
    main()
