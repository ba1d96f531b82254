"""One long life without faults, in which the memory of the workers is watched as well."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

import fastvec
from soak.compare import difference
from soak.envs import Plan
from soak.leaks import Memory, growth

#: Steps between two samples.
EVERY = 2_000


class Long(NamedTuple):
    """What became of it.

    Attributes:
        steps: Steps of the batch.
        env_steps: Steps of single environments.
        wrong: The first value that was not as expected, if any.
        parent: The program's memory.
        workers: That of each worker.
    """

    steps: int
    env_steps: int
    wrong: str | None
    parent: list[Memory]
    workers: list[list[Memory]]

    def worker_growth(self) -> list[float]:
        """Private bytes in 10^5 steps, of each worker that was watched for long enough."""
        slopes = [growth(samples, lambda memory: memory.uss) for samples in self.workers]
        return [slope for slope in slopes if slope is not None]


def long_life(seed: int, steps: int, tick: Callable[[int], None]) -> Long:
    """Cheap steps on two workers, with infos of numbers, each compared with the serial engine's.

    Args:
        seed: Of the environments.
        steps: How many.
        tick: Called with the number of steps since the last call.
    """
    box, action = spaces.Box(-1, 1, (8,), np.float32), spaces.Box(-1, 1, (2,), np.float32)
    plan = Plan(box, action, 0, seed, None, finite=True, infos=1, horizon=100, old_api=False)
    plans = [dataclasses.replace(plan, env_id=i, seed=seed + i) for i in range(4)]
    with (
        fastvec.SharedMemVectorEnv(plans, num_workers=2, start_method="fork") as subject,
        fastvec.SharedMemVectorEnv(plans, num_workers=0) as reference,
    ):
        pids = [worker.process.pid for worker in subject._engine._pool.workers]
        parent: list[Memory] = []
        workers: list[list[Memory]] = [[] for _ in pids]
        wrong = difference(subject.reset(seed=seed), reference.reset(seed=seed))
        done = 0
        for actions in _actions(seed, steps):
            wrong = wrong or difference(subject.step(actions), reference.step(actions))
            done += 1
            if done % EVERY == 0:
                tick(EVERY)
                parent.append(Memory.of(done))
                for samples, pid in zip(workers, pids, strict=True):
                    samples.append(Memory.of(done, pid))
            if wrong:
                break
    return Long(done, done * len(plans), wrong, parent, workers)


def _actions(seed: int, steps: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    batches = rng.uniform(-1, 1, (64, 4, 2)).astype(np.float32)
    for step in range(steps):
        yield batches[step % len(batches)]
