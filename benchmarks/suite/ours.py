"""Our own contenders, and the one place that knows what this version of fastvec can do.

NOTE [not available]: what a version lacks is reported as such, never replaced by something else.
"""

from __future__ import annotations

import functools
from time import perf_counter
from typing import Any

import numpy as np

import fastvec.sb3
from fastvec import SharedMemVecEnv, SharedMemVectorEnv
from fastvec._core.options import EngineOptions
from fastvec.errors import ConfigError
from suite.envs import NoOpEnv
from suite.stepper import Turn
from suite.workloads import Plan

__all__ = [
    "SharedMemVecEnv",
    "SharedMemVectorEnv",
    "SplitStepper",
    "not_available",
    "pipelined_ppo",
    "spare_resets",
    "split_refuses",
    "tuned_options",
    "tuned_refuses",
]

#: How many environments stand ready, reset, for each worker, where that is used.
SPARE_RESETS = 2


@functools.lru_cache(maxsize=1)
def leases() -> bool:
    """Whether ``copy=False`` is taken."""
    try:
        SharedMemVecEnv([NoOpEnv], num_workers=1, start_method="fork", copy=False).close()
    except ConfigError:
        return False
    return True


def splits() -> bool:
    """Whether a batch can be split into halves of which one steps while the other is looked at."""
    return hasattr(SharedMemVecEnv, "split")


def spare_resets() -> dict[str, Any]:
    """The option that has environments reset beforehand; empty where there is none."""
    return {"spare_resets": SPARE_RESETS} if "spare_resets" in EngineOptions.__annotations__ else {}


def pipelined_ppo() -> Any:
    """The learner that uses both halves in turn, or None."""
    return getattr(fastvec.sb3, "PipelinedPPO", None)


def not_available() -> dict[str, str]:
    """What this version lacks, and so what is not measured."""
    found = {
        "SharedMemVecEnv two splits": (splits(), "`split()`"),
        "copy=False": (leases(), "`copy=False`"),
        "spare_resets": (bool(spare_resets()), "`spare_resets`"),
        "PipelinedPPO": (pipelined_ppo() is not None, "`PipelinedPPO`"),
    }
    return {name: f"this version has no {what}" for name, (there, what) in found.items() if not there}


def tuned_options() -> dict[str, Any]:
    """What a user would set who wants speed: CPUs of its own for each worker, and no copies."""
    return {"cpu_affinity": "auto"} | ({"copy": False} if leases() else {})


def tuned_refuses(plan: Plan) -> str:
    return "" if plan.workers else "without workers there is nothing to place"


def split_refuses(plan: Plan) -> str:
    if not splits():
        return "this version has no `split()`"
    if min(map(len, plan.slices)) < 2 or not plan.workers:
        return "each worker needs two environments to split"
    return ""


class SplitStepper:
    """Two halves of every worker's environments: while one is looked at, the other steps."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.venv = SharedMemVecEnv(plan.env_fns, num_workers=plan.workers, start_method=plan.start_method)
        self.halves: Any = self.venv.split(2)  # type: ignore[attr-defined]
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
