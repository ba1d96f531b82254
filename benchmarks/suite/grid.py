"""Which comparisons a run makes. The whole grid is made for half an hour on two CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from suite.contenders import CONTENDERS
from suite.workloads import GYMNASIUM, WORKS

__all__ = ["CORE", "NS", "QUICK_WORKS", "WORKER_COUNTS", "Task", "full", "quick", "targets"]

#: Who is in every comparison; the peers are in one of each work only.
CORE = (
    "free limit",
    "lockstep limit",
    "DummyVecEnv",
    "SubprocVecEnv",
    "SharedMemVecEnv",
    "SharedMemVecEnv tuned",
    "SharedMemVecEnv serial",
    "SharedMemVecEnv two splits",
)
NS = (1, 2, 4, 8, 32, 128, 512, 1024)
WORKER_COUNTS = (0, 1, 2, 4)
#: Over numbers of environments; a thousand MuJoCo models for each contender are too much for a small memory.
SWEPT_OVER_N = ("no-op", "CartPole-v1", "LunarLander-v3")
SWEPT_OVER_WORKERS = ("no-op", "CartPole-v1", "HalfCheetah-v5", "BipedalWalker-v3")
QUICK_WORKS = ("no-op", "CartPole-v1", "HalfCheetah-v5", "BipedalWalker-v3")
TARGET_WORKS = (*(name for name in GYMNASIUM if name not in ("LunarLander-v3", "Hopper-v5")), "no-op", "images 84x84x4")


class Task(NamedTuple):
    """One comparison to make."""

    work: str
    n: int
    workers: int
    contenders: tuple[str, ...]


def full() -> list[Task]:
    """Every work with everybody; some with every number of environments, some with every number of workers."""
    return unique(
        [
            *(Task(work, 32, 2, tuple(CONTENDERS)) for work in WORKS),
            *(Task(work, n, 2, CORE) for work in SWEPT_OVER_N for n in NS),
            *(Task(work, 32, workers, CORE) for work in SWEPT_OVER_WORKERS for workers in WORKER_COUNTS),
        ]
    )


def quick() -> list[Task]:
    """A few minutes' worth."""
    return unique(
        [
            *(Task(work, 32, 2, CORE) for work in QUICK_WORKS),
            *(Task("no-op", n, 2, CORE) for n in (1, 128, 1024)),
        ]
    )


def targets() -> list[Task]:
    """What the targets speak of."""
    return unique(
        [
            *(Task(work, 32, 2, CORE) for work in TARGET_WORKS),
            *(Task(work, 1024, 2, CORE) for work in ("no-op", "CartPole-v1")),
        ]
    )


def chosen(works: Sequence[str], ns: Sequence[int], workers: Sequence[int], names: Sequence[str]) -> list[Task]:
    """Every combination."""
    return [Task(work, n, count, tuple(names)) for work in works for n in ns for count in workers]


def unique(tasks: Iterable[Task]) -> list[Task]:
    """The first of each work, number of environments and number of workers."""
    found: dict[tuple[str, int, int], Task] = {}
    for task in tasks:
        found.setdefault(task[:3], task)
    return list(found.values())
