"""How long single steps of a batch take: the slow ones are those in which an environment was reset.

Blocks of steps take turns between the contenders; all times of a contender are put together for the percentiles.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv

from suite import ours
from suite.workloads import WORKS, Plan

__all__ = ["step_times"]

#: Steps of the batch in a block.
BLOCK = 50


def step_times(
    work: str = "BipedalWalker-v3",
    n: int = 32,
    workers: int = 2,
    blocks: int = 12,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Percentiles of the milliseconds of a step, with random actions, by contender."""
    plan = Plan(WORKS[work], n, workers)
    shared: Callable[..., Any] = partial(ours.SharedMemVecEnv, num_workers=workers, start_method="fork")
    makes: dict[str, Callable[..., Any]] = {
        "DummyVecEnv": DummyVecEnv,
        "SharedMemVecEnv": shared,
        "SharedMemVecEnv spare resets": partial(shared, spare_resets=ours.SPARE_RESETS),
    }
    times: dict[str, list[float]] = {name: [] for name in makes}
    with contextlib.ExitStack() as stack:
        venvs = {}
        for name, make in makes.items():
            venvs[name] = stack.enter_context(contextlib.closing(make(plan.env_fns)))
            venvs[name].seed(0)
            venvs[name].reset()
        # The first block, in which all episodes are young, is not counted.
        for block in range(blocks + 1):
            tell(f"step times, {block} of {blocks}")
            for name, venv in venvs.items():
                for actions in plan.window(block * BLOCK, BLOCK):
                    began = time.perf_counter()
                    venv.step(actions)
                    if block:
                        times[name].append((time.perf_counter() - began) * 1e3)
    percentiles = {
        name: dict(zip(("p50", "p90", "p99", "max"), np.percentile(found, (50, 90, 99, 100)).tolist(), strict=True))
        for name, found in times.items()
    }
    return {"work": work, "n": n, "workers": workers, "steps": blocks * BLOCK, "ms": percentiles}
