"""The limits: what the environments alone allow, on as many processes, without any vectorization.

*Free*: each process steps its share of the environments round robin in a bare loop, with actions made beforehand,
resets included, and knows nothing of the others. The limit is the sum of their rates. All begin together and none
ends its turn before the last does: who is ready keeps its CPU busy until then, so that no rate is had on an emptier
machine than the others'.

*Lockstep*: the same, with a barrier after each round, at which a process looks at the counters of the others in
shared memory until all have come. No `step()` that returns a whole batch can be faster: it would have to know the
slowest observation before it is there.

The processes are forked and bound to no CPUs, as those of the contenders are by default.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from suite.stepper import Turn, batch
from suite.workloads import Plan

__all__ = ["Barrier", "Limit", "Share", "free_seconds", "lockstep_seconds"]

#: Bytes between two counters, so that no two are in one cache line.
_LINE = 64

#: Commands to a process; others are the first step of a turn and how many there are.
_RESTART, _CLOSE = (0, 0), (0, -1)


class Share(NamedTuple):
    """How one process fared in a turn: when it began and ended by the clock that all share, and its environments."""

    began: float
    ended: float
    envs: int


def free_seconds(shares: Sequence[Share], steps: int) -> float:
    """Seconds for ``steps`` of all environments at the sum of the rates of the processes."""
    rate = sum(steps * share.envs / (share.ended - share.began) for share in shares)
    return steps * sum(share.envs for share in shares) / rate


def lockstep_seconds(shares: Sequence[Share]) -> float:
    """Seconds from when the last has begun until all have ended."""
    return max(share.ended for share in shares) - max(share.began for share in shares)


class Barrier:
    """Counters in shared memory, one a process. Each process has its own object over the same memory.

    Args:
        memory: Shared, one line a process.
        index: Which counter is this process's own.
        parties: How many there are.
    """

    def __init__(self, memory: mmap.mmap, index: int, parties: int) -> None:
        self._counters = memoryview(memory).cast("Q")
        self._own = index * _LINE // 8
        self._others = [other * _LINE // 8 for other in range(parties) if other != index]
        # With fewer CPUs than processes, looking on would keep the CPU from the one that is waited for. Whoever has
        # looked on for about a millisecond may be on a machine where that is so as well, because of other programs.
        self._patience = 0 if parties > len(os.sched_getaffinity(0)) else 20_000

    def wait(self) -> None:
        """Return when all have come here as often as this process has."""
        counters = self._counters
        counters[self._own] += 1
        come = counters[self._own]
        for other in self._others:
            looks = 0
            while counters[other] < come:
                looks += 1
                if looks > self._patience:
                    os.sched_yield()


class Limit:
    """The processes of one limit, as a contender among the others.

    Args:
        plan: What to step. Without workers there is one process.
        lockstep: Whether there is a barrier after each round.
    """

    def __init__(self, plan: Plan, lockstep: bool) -> None:
        self._plan, self._lockstep = plan, lockstep
        slices = plan.slices
        memory = mmap.mmap(-1, _LINE * len(slices))
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes = []
        for index, env_ids in enumerate(slices):
            ours, theirs = context.Pipe()
            arguments = (plan, env_ids, lockstep, memory, index, len(slices), theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        memory.close()

    def restart(self) -> Any:
        return batch([row for rows in self._ask(_RESTART) for row in rows])

    def advance(self, first: int, steps: int) -> Turn:
        answers = self._ask((first, steps))
        shares = [share for share, _ in answers]
        seconds = lockstep_seconds(shares) if self._lockstep else free_seconds(shares, steps)
        return Turn(seconds, batch([row for _, rows in answers for row in rows]))

    def close(self) -> None:
        # The end of a pipe would not tell them: the processes that were forked later have it open, too.
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(_CLOSE)
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join(10)
            pipe.close()
            if process.is_alive():
                process.kill()
                process.join()
            process.close()

    def _ask(self, command: tuple[int, int]) -> list[Any]:
        for pipe in self._pipes:
            pipe.send(command)
        return [pipe.recv() for pipe in self._pipes]


def _serve(
    plan: Plan, env_ids: range, lockstep: bool, memory: mmap.mmap, index: int, parties: int, pipe: Connection
) -> None:
    """One process: restarts and turns, until told to close."""
    envs = [plan.work.make() for _ in env_ids]
    barrier = Barrier(memory, index, parties)
    last: list[Any] = []
    while True:
        command = pipe.recv()
        if command == _CLOSE:
            break
        if command == _RESTART:
            last = [env.reset(seed=env_id)[0] for env_id, env in zip(env_ids, envs, strict=True)]
            pipe.send(last)
            continue
        first, steps = command
        # Rows of arrays, as a vectorized environment gives them to its own.
        rounds = [list(actions[env_ids.start : env_ids.stop]) for actions in plan.window(first, steps)]
        began, ended = _turn(envs, rounds, last, barrier.wait if lockstep else None, barrier)
        pipe.send((Share(began, ended, len(envs)), last))
    for env in envs:
        env.close()


def _turn(
    envs: list[Any], rounds: list[list[Any]], last: list[Any], after: Callable[[], None] | None, barrier: Barrier
) -> tuple[float, float]:
    """When the bare loop began, and when it ended."""
    barrier.wait()
    began = time.perf_counter()
    for actions in rounds:
        for index, env in enumerate(envs):
            observation, _, terminated, truncated, _ = env.step(actions[index])
            if terminated or truncated:
                observation, _ = env.reset()
            last[index] = observation
        if after is not None:
            after()
    ended = time.perf_counter()
    barrier.wait()
    return began, ended


def free(plan: Plan) -> Limit:
    return Limit(plan, lockstep=False)


def lockstep(plan: Plan) -> Limit:
    return Limit(plan, lockstep=True)
