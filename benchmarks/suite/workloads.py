"""What is stepped: the works, and the actions that every contender gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from suite.envs import BusyEnv, DictEnv, ExponentialEnv, ImageEnv, NoOpEnv, SlowResetEnv

__all__ = ["GYMNASIUM", "WORKS", "Plan", "Work"]

#: Ids of Gymnasium, from the cheapest step to the dearest.
GYMNASIUM = ("CartPole-v1", "LunarLander-v3", "Hopper-v5", "HalfCheetah-v5", "Humanoid-v5", "BipedalWalker-v3")


@dataclass(frozen=True)
class Work:
    """A kind of environment."""

    name: str
    make: Callable[[], gymnasium.Env[Any, Any]]


WORKS = {
    work.name: work
    for work in (
        Work("no-op", NoOpEnv),
        *(Work(f"busy {step_us} us", partial(BusyEnv, step_us)) for step_us in (10, 100, 1_000, 10_000)),
        Work("exponential 100 us", partial(ExponentialEnv, 100)),
        Work("slow reset", SlowResetEnv),
        Work("images 84x84x4", partial(ImageEnv, 84, 84, 4)),
        Work("images 3x210x160", partial(ImageEnv, 3, 210, 160)),
        Work("dict", DictEnv),
        *(Work(env_id, partial(gymnasium.make, env_id)) for env_id in GYMNASIUM),
    )
}


@dataclass(frozen=True)
class Plan:
    """A batch of environments and the actions made for it, which are used again from the first when they end.

    Attributes:
        work: What is stepped.
        n: How many of it.
        workers: Processes, for those who share out the environments.
        start_method: Of processes, for those who let it be chosen.
    """

    work: Work
    n: int
    workers: int
    start_method: str = "fork"
    actions: list[NDArray[Any]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        env = self.work.make()
        space = env.action_space
        env.close()
        space.seed(0)
        length = min(300, max(32, 20_000 // self.n))
        batches = [np.array([space.sample() for _ in range(self.n)]) for _ in range(length)]
        object.__setattr__(self, "actions", batches)

    @property
    def env_fns(self) -> list[Callable[[], gymnasium.Env[Any, Any]]]:
        return [self.work.make] * self.n

    @property
    def slices(self) -> list[range]:
        """The environments of each worker, in one process if there are no workers: the first have one more."""
        return share_out(self.n, max(1, min(self.workers, self.n)))

    def window(self, first: int, steps: int) -> list[NDArray[Any]]:
        """The actions of some steps."""
        return [self.actions[k % len(self.actions)] for k in range(first, first + steps)]


def share_out(n: int, parts: int) -> list[range]:
    """``range(n)`` in contiguous parts, the first ones longer by one where it does not come out even."""
    sizes = [n // parts + (part < n % parts) for part in range(parts)]
    ends = np.cumsum(sizes).tolist()
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
