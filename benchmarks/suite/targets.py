"""What fastvec sets out to reach, and whether a run has reached it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from suite import end_to_end
from suite.results import Results

__all__ = ["TARGETS", "Target", "reached"]

SHARED, TUNED, SPLIT = "SharedMemVecEnv", "SharedMemVecEnv tuned", "SharedMemVecEnv two splits"


class Target(NamedTuple):
    """One figure to reach.

    Attributes:
        row: What is stepped or trained.
        column: What is told of it.
        least: The figure, or the most where ``falling``.
        measure: The figure of a run, or why there is none.
        falling: Whether less is better.
    """

    row: str
    column: str
    least: float
    measure: Callable[[Results], float | str]
    falling: bool = False

    def met(self, value: float) -> bool:
        return value <= self.least if self.falling else value >= self.least


LOCKSTEP, SUBPROC, DUMMY = "of the lockstep limit", "× SubprocVecEnv", "× DummyVecEnv"
SPLITS = "two splits, of the free limit"


def ratio(work: str, name: str, to: str) -> Callable[[Results], float | str]:
    """The ratio of two contenders, with 32 environments and 2 workers."""

    def measure(results: Results) -> float | str:
        cell = results.cell(work)
        if cell is None:
            return "not run"
        if name not in cell:
            return cell.left_out.get(name, "not run")
        return cell.ratio(name, to).median if to in cell else "not run"

    return measure


def flat(work: str) -> Callable[[Results], float | str]:
    """Overhead over the lockstep limit, a step of one environment, with 1024 environments by that with 32."""

    def measure(results: Results) -> float | str:
        few, many = results.cell(work, 32), results.cell(work, 1024)
        if few is None or many is None:
            return "not run"
        before, after = (cell.overhead(SHARED, "lockstep limit") for cell in (few, many))
        return after / before if before > 0 else "no overhead with 32 to compare with"

    return measure


def collection(n: int, threads: int | None, to: str, name: str = SHARED) -> Callable[[Results], float | str]:
    """How many times as fast a collection of PPO is as another's."""

    def measure(results: Results) -> float | str:
        for found in results.learning:
            if (found["algorithm"], found["n"], found["threads"]) == ("PPO", n, threads):
                if name not in found["runs"]:
                    return results.missing.get(name, "not run")
                return end_to_end.times(found, name, to)
        return "not run"

    return measure


def tail(results: Results) -> float | str:
    """The p99 of a step with spare resets, by that without."""
    if not results.tails:
        return "not run"
    found = results.tails["ms"]
    spare = found.get("SharedMemVecEnv spare resets")
    return spare["p99"] / found[SHARED]["p99"] if spare else results.missing.get("spare_resets", "not run")


def start(measure: Callable[[dict[str, Any]], float]) -> Callable[[Results], float | str]:
    return lambda results: measure(results.start["runs"]) if results.start else "not run"


def copy_free(to: str) -> Callable[[Results], float | str]:
    """Pictures that are not copied."""
    plain = ratio("images 84x84x4", TUNED, to)
    return lambda results: results.missing["copy=False"] if "copy=False" in results.missing else plain(results)


def row(work: str, *least: float | None) -> list[Target]:
    """A row of the table of bare steps."""
    columns = ((LOCKSTEP, SHARED, "lockstep limit"), (SUBPROC, SHARED, "SubprocVecEnv"), (DUMMY, SHARED, "DummyVecEnv"))
    split = ((SPLITS, SPLIT, "free limit"),)
    return [
        Target(work, column, figure, ratio(work, name, to))
        for (column, name, to), figure in zip(columns + split, least, strict=True)
        if figure is not None
    ]


#: With 32 environments on 2 workers, all started with fork.
STEPS = [
    *row("CartPole-v1", 0.70, 20, 1.6, 0.75),
    *row("HalfCheetah-v5", 0.92, 5, 1.8, 0.93),
    *row("Humanoid-v5", 0.93, 2.3, 1.7, 0.93),
    *row("BipedalWalker-v3", 0.93, 2.2, 1.7, 0.93),
    *row("no-op", None, 80, 1.5, None),
    Target("images 84x84x4, `copy=False`", SUBPROC, 60, copy_free("SubprocVecEnv")),
    Target("images 84x84x4, `copy=False`", DUMMY, 1.5, copy_free("DummyVecEnv")),
]
OTHERS = [
    *(
        Target(f"{work}, overhead of a step, 1024 environments by 32", "ratio", 1.0, flat(work), falling=True)
        for work in ("no-op", "CartPole-v1")
    ),
    Target("PPO, BipedalWalker, 32 environments, collection", DUMMY, 1.6, collection(32, 1, "DummyVecEnv")),
    Target("PPO, BipedalWalker, 32 environments, collection", SUBPROC, 2.0, collection(32, 1, "SubprocVecEnv")),
    Target("PPO, BipedalWalker, 4 environments, collection", DUMMY, 1.0, collection(4, 1, "DummyVecEnv")),
    Target(
        "PPO, BipedalWalker, 4 environments, collection, torch's own number of threads",
        DUMMY,
        1.0,
        collection(4, None, "DummyVecEnv"),
    ),
    Target(
        "`PipelinedPPO`, BipedalWalker, 32 environments, collection",
        "× PPO",
        1.25,
        collection(32, 1, SHARED, "PipelinedPPO"),
    ),
    Target("BipedalWalker, p99 of a step with `spare_resets` by that without", "ratio", 0.5, tail, falling=True),
    Target(
        "start of 32 environments by `SubprocVecEnv`'s",
        "ratio",
        0.1,
        start(lambda runs: runs["SharedMemVecEnv, 2 workers"]["seconds"] / runs["SubprocVecEnv"]["seconds"]),
        falling=True,
    ),
    Target(
        "private memory of a worker, 32 environments",
        "MB",
        10.0,
        start(lambda runs: runs["SharedMemVecEnv, 2 workers"]["private_mb"]),
        falling=True,
    ),
]
TARGETS = STEPS + OTHERS


def reached(results: Results) -> tuple[int, int]:
    """How many targets a run has reached, of how many that it measured."""
    values = [(target, target.measure(results)) for target in TARGETS]
    measured = [(target, value) for target, value in values if not isinstance(value, str)]
    return sum(target.met(value) for target, value in measured), len(measured)
