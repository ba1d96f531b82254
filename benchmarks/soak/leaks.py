"""What a scenario has left behind, and how memory grows."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

#: Seconds that the system has to take back what a scenario has given up.
PATIENCE = 5.0
MB = 2**20


class Belongings(NamedTuple):
    """What this process has.

    Attributes:
        children: Processes below it.
        descriptors: What its open descriptors refer to.
        threads: Its threads.
        shared: The entries of /dev/shm, which other programs have too.
        temporary: The files in the folder of temporary files, which is this program's own.
    """

    children: frozenset[int]
    descriptors: frozenset[str]
    threads: frozenset[str]
    shared: frozenset[str]
    temporary: frozenset[str]

    @classmethod
    def now(cls) -> Belongings:
        gc.collect()
        return cls(
            frozenset(child.pid for child in psutil.Process().children(recursive=True)),
            frozenset(_descriptors()),
            frozenset(os.listdir("/proc/self/task")),
            frozenset(os.listdir("/dev/shm")),
            frozenset(map(str, Path(tempfile.gettempdir()).iterdir())),
        )


def _descriptors() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except OSError:
            continue
    return found


def leftovers(before: Belongings) -> list[str]:
    """What there is now and was not before, once the system has had time to take it back."""
    deadline = time.monotonic() + PATIENCE
    while left := _more(before, Belongings.now()):
        if time.monotonic() > deadline:
            return left
        time.sleep(0.05)
    return []


def _more(before: Belongings, now: Belongings) -> list[str]:
    kinds = zip(Belongings._fields, before, now, strict=True)
    return [f"{kind}: {sorted(new - old)}" for kind, old, new in kinds if new - old]


def end_children() -> None:
    """After a scenario that has gone wrong: end the processes that it has left."""
    for child in psutil.Process().children(recursive=True):
        child.kill()


class Memory(NamedTuple):
    """What a process used after some steps, in bytes: its pages, and those that are its alone."""

    steps: int
    rss: int
    uss: int

    @classmethod
    def of(cls, steps: int, pid: int | None = None) -> Memory:
        full = psutil.Process(pid).memory_full_info()
        return cls(steps, full.rss, full.uss)


def growth(samples: Sequence[Memory], size: Callable[[Memory], int], warm_up: float = 0.2) -> float | None:
    """Bytes in 10^5 steps: the Theil-Sen slope, the median of the slopes between all pairs of samples.

    A single jump, as an allocator makes it, moves the median little, whereas steady growth moves all of it.

    Args:
        samples: In order.
        size: What of them.
        warm_up: The share of the samples at the beginning that is left out.

    Returns:
        None if there are too few samples.
    """
    kept = samples[int(len(samples) * warm_up) :]
    if len(kept) > 1000:
        kept = kept[:: -(-len(kept) // 1000)]
    if len(kept) < 5:
        return None
    steps = np.array([sample.steps for sample in kept], float)
    sizes = np.array([size(sample) for sample in kept], float)
    one, other = np.triu_indices(len(kept), 1)
    apart = steps[other] > steps[one]
    slopes = (sizes[other] - sizes[one])[apart] / (steps[other] - steps[one])[apart]
    return float(np.median(slopes) * 1e5) if len(slopes) else None
