"""A run: the comparisons of a grid one after the other, and what else is asked for."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from suite import end_to_end, start, tails
from suite.contenders import CONTENDERS, missing
from suite.grid import Task
from suite.interleave import compare
from suite.results import Cell, Results
from suite.workloads import WORKS, Plan

__all__ = ["PARTS", "Options", "run"]

PARTS = ("steps", "learning", "tails", "start")


@dataclass(frozen=True)
class Options:
    """How thorough a run is.

    Attributes:
        tasks: The comparisons of bare steps.
        parts: Of :data:`PARTS`, which to run.
        rounds: Turns of each contender; half as many, but three, for trainings.
        seconds: Of a turn.
        trainings: What is trained.
        starts: How often everything is started.
        n: Environments in starts and single steps.
    """

    tasks: Sequence[Task]
    parts: Sequence[str] = PARTS
    rounds: int = 7
    seconds: float = 0.2
    trainings: Sequence[end_to_end.Training] = end_to_end.TRAININGS
    starts: int = 1
    n: int = 32


def run(about: dict[str, Any], options: Options, console: Console, keep: Callable[[Results], None]) -> Results:
    """Measure everything, and show how far it is; what there is so far is given to ``keep`` now and then."""
    tasks = list(options.tasks) if "steps" in options.parts else []
    names = dict.fromkeys(name for task in tasks for name in task.contenders)
    results = Results(about, missing=missing(names))
    trainings = options.trainings if "learning" in options.parts else ()
    others = [part for part in ("tails", "start") if part in options.parts]
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn when there is something to say only: a thread that draws would take its part of what is measured.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        bar = progress.add_task("", total=len(tasks) + len(trainings) + len(others))

        def teller(title: str) -> Callable[[str], None]:
            return lambda what: progress.update(bar, description=f"{title}: {what}", refresh=True)

        for task in tasks:
            title = f"{task.work}, n={task.n}, {task.workers} workers"
            contenders = [CONTENDERS[name] for name in task.contenders]
            plan = Plan(WORKS[task.work], task.n, task.workers)
            results.cells.append(compare(plan, contenders, options.rounds, options.seconds, teller(title)))
            progress.console.print(line(results.cells[-1]), highlight=False, markup=False)
            progress.advance(bar)
            keep(results)
            gc.collect()
        for training in trainings:
            title = f"{training.algorithm}, {training.env_id}, n={training.n}"
            results.learning.append(end_to_end.train(training, max(3, options.rounds // 2), teller(title)))
            progress.console.print(end_to_end.line(results.learning[-1]), highlight=False, markup=False)
            progress.advance(bar)
            keep(results)
        if "tails" in others:
            results.tails = tails.step_times(n=options.n, blocks=2 * options.rounds, tell=teller("single steps"))
            progress.advance(bar)
        if "start" in others:
            results.start = start.starts(n=options.n, rounds=options.starts, tell=teller("starts"))
            progress.advance(bar)
    return results


def line(cell: Cell) -> str:
    """A comparison in a line: our default setting beside the limit and what it replaces."""
    name = "SharedMemVecEnv" if "SharedMemVecEnv" in cell else next(reversed(cell.rates))
    ratios = [
        f"{cell.ratio(name, other).median:.2f} × {other}"
        for other in ("lockstep limit", "SubprocVecEnv", "DummyVecEnv")
        if other in cell and other != name
    ]
    head = f"{cell.work}, n={cell.n}, {cell.workers} workers"
    return f"{head:38} {name} {cell.rate(name):12,.0f} steps/s  {', '.join(ratios)}"


@contextlib.contextmanager
def quiet() -> Iterator[Console]:
    """Send what libraries and workers print to a file, and this program's own lines to where they are read."""
    sys.stdout.flush()
    sys.stderr.flush()
    streams = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as noise, os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(noise.fileno(), 1)
        os.dup2(noise.fileno(), 2)
        try:
            yield Console(file=out, soft_wrap=True)
        except Exception:
            noise.seek(0)
            os.write(streams[1], noise.read()[-20_000:])
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(streams[0], 1)
            os.dup2(streams[1], 2)
            for stream in streams:
                os.close(stream)
