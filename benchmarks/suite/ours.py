"""Our own contenders: their options, and two splits in turn."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from fastvec import SharedMemVecEnv, SharedMemVectorEnv
from suite.stepper import Turn
from suite.workloads import Plan

__all__ = [
    "SPARE_RESETS",
    "TUNED",
    "SharedMemVecEnv",
    "SharedMemVectorEnv",
    "SplitStepper",
    "split_refuses",
    "tuned_refuses",
]

#: How many environments stand ready, reset, for each worker, where that is used.
SPARE_RESETS = 4

#: What a user would set who wants speed: CPUs of its own for each worker, and no copies.
TUNED: dict[str, Any] = {"cpu_affinity": "auto", "copy": False}


def tuned_refuses(plan: Plan) -> str:
    return "" if plan.workers else "without workers there is nothing to place"


def split_refuses(plan: Plan) -> str:
    if min(map(len, plan.slices)) < 2 or not plan.workers:
        return "each worker needs two environments to split"
    return ""


class SplitStepper:
    """Two halves of every worker's environments: while one is looked at, the other steps."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.venv = SharedMemVecEnv(plan.env_fns, num_workers=plan.workers, start_method=plan.start_method)
        self.halves: Any = self.venv.split(2)
        self.env_ids = [np.array(half.env_ids) for half in self.halves]

    def restart(self) -> Any:
        for half, env_ids in zip(self.halves, self.env_ids, strict=True):
            half.seed(env_ids.tolist())
        return self._joined([half.reset() for half in self.halves])

    def advance(self, first: int, steps: int) -> Turn:
        one, other = self.halves
        window = self._plan.window(first, steps)
        ours, theirs = ([actions[env_ids] for actions in window] for env_ids in self.env_ids)
        began = perf_counter()
        one.step_async(ours[0])
        for step in range(steps):
            other.step_async(theirs[step])
            last = one.step_wait()[0]
            if step + 1 < steps:
                one.step_async(ours[step + 1])
            last_of_other = other.step_wait()[0]
        seconds = perf_counter() - began
        return Turn(seconds, self._joined([last, last_of_other]))

    def close(self) -> None:
        self.venv.close()

    def _joined(self, halves: list[Any]) -> Any:
        if isinstance(halves[0], dict):
            return {key: self._joined([half[key] for half in halves]) for key in halves[0]}
        whole = np.empty((self._plan.n, *halves[0].shape[1:]), halves[0].dtype)
        for half, env_ids in zip(halves, self.env_ids, strict=True):
            whole[env_ids] = half
        return whole
