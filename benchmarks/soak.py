"""Does anything go wrong in a long run of random spaces, splits, options, calls and faults?

For a given time, random batches of environments are driven through random calls, in which their workers raise, exit,
crash, hang and are killed. Every value that comes back is compared with that of the serial engine
(`num_workers=0`), and after each batch it is counted what is left: processes, descriptors, threads, files, memory.

    python benchmarks/soak.py [--minutes 60] [--seed 0] [--markdown PAGE] [--json FILE]
    python benchmarks/soak.py --scenario SEED        one batch again, as it stands in a report of something wrong

The exit code is 1 if any value was wrong, anything hung or was left behind, or this program itself failed.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from soak import report
from soak.growth import EVERY, long_life
from soak.leaks import Belongings, Memory, end_children, leftovers
from soak.outcome import Outcome
from soak.report import Report
from soak.scenario import Scenario

import fastvec

#: Seconds between two long lives, and the steps of one.
LONG_EVERY, LONG_STEPS = 300.0, 120_000


def live(seed: int, most_steps: int, perturbed: int | None) -> Outcome:
    """One scenario, and what it left. Nothing that goes wrong in it ends the program."""
    before = Belongings.now()
    outcome = Outcome(seed)
    try:
        scenario = Scenario(seed, most_steps, perturbed)
        outcome = scenario.outcome
        scenario.run()
        del scenario
    except Exception:
        outcome.broken.append(traceback.format_exc())
    outcome.left += leftovers(before)
    if outcome.bad:
        end_children()
    return outcome


def soak(arguments: argparse.Namespace, console: Console) -> Report:
    """Scenario after scenario until the time is over."""
    result = Report.begin(vars(arguments))
    seeds = np.random.default_rng(arguments.seed)
    seconds, began, last_long = arguments.minutes * 60, time.monotonic(), -LONG_EVERY
    # What is imported and cached once for good is no growth.
    for name in fastvec.__all__:
        getattr(fastvec, name)
    live(1, arguments.steps, None)
    with bar(console) as progress:
        task = progress.add_task("", total=seconds, said="")
        while (spent := time.monotonic() - began) < seconds and result.scenarios < arguments.scenarios:
            if arguments.long and spent - last_long >= LONG_EVERY:
                last_long = spent
                result.add_long(
                    long_life(
                        int(seeds.integers(2**31)),
                        arguments.long,
                        lambda _: progress.update(task, completed=time.monotonic() - began, refresh=True),
                    )
                )
            outcome = live(int(seeds.integers(2**31)), arguments.steps, arguments.perturb)
            result.add(outcome, Memory.of(result.steps + outcome.steps))
            if outcome.bad:
                complain(console, outcome)
            progress.update(task, completed=time.monotonic() - began, said=result.line(), refresh=True)
    result.seconds = time.monotonic() - began
    return result


def bar(console: Console) -> Progress:
    """Without a thread of its own, which would be taken for one that was left."""
    columns = (BarColumn(20), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[said]}"))
    return Progress(*columns, console=console, auto_refresh=False)


def complain(console: Console, outcome: Outcome) -> None:
    console.print(f"[bold red]scenario {outcome.seed}[/]: {outcome.plan}", highlight=False)
    for name in ("wrong", "hangs", "left", "broken"):
        for text in getattr(outcome, name):
            console.print(f"  {name}: ", end="", style="red")
            console.print(text, markup=False, highlight=False)


@contextlib.contextmanager
def quiet() -> Iterator[Console]:
    """Send what environments and workers write to a file, and this program's own lines to where they are read."""
    folder = tempfile.mkdtemp(prefix="fastvec-soak-")
    streams = os.dup(1), os.dup(2)
    with open(Path(folder) / "output", "w") as noise, os.fdopen(os.dup(1), "w", buffering=1) as out:
        temporary = Path(folder) / "temporary"
        temporary.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
        logging.getLogger("fastvec").addHandler(logging.FileHandler(Path(folder) / "log"))
        logging.getLogger("fastvec").propagate = False
        warnings.simplefilter("ignore")
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(noise.fileno(), 1)
        os.dup2(noise.fileno(), 2)
        try:
            yield Console(file=out, soft_wrap=True)
        finally:
            os.dup2(streams[0], 1)
            os.dup2(streams[1], 2)
            shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=0, help="decides what is drawn")
    parser.add_argument("--scenarios", type=float, default=float("inf"), help="the most scenarios")
    parser.add_argument("--steps", type=int, default=3000, help="the most steps of a scenario")
    parser.add_argument("--long", type=int, default=LONG_STEPS, metavar="STEPS", help="of a long life, 0 for none")
    parser.add_argument("--scenario", type=int, metavar="SEED", help="run this one alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="write the page, and a chart beside it")
    parser.add_argument("--perturb", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.long % EVERY:
        parser.error(f"--long must be a multiple of {EVERY}")
    with quiet() as console:
        if arguments.scenario is not None:
            outcome = live(arguments.scenario, arguments.steps, arguments.perturb)
            complain(console, outcome)
            console.print(f"{outcome.steps} steps, {sum(outcome.faults.values())} faults")
            sys.exit(outcome.bad)
        result = soak(arguments, console)
        console.print(result.text(), highlight=False, markup=False)
    if arguments.json:
        arguments.json.write_text(result.as_json())
    if arguments.markdown:
        report.write_page(arguments.markdown, result)
    sys.exit(result.bad)


if __name__ == "__main__":
    main()
