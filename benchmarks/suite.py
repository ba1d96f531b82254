"""How many environment steps a second, beside the most that is possible, what is replaced, and the peers?

All contenders of a comparison, the limits among them, live side by side and take turns in short rounds; values are
checked. The whole grid is meant for a machine that does nothing else, and takes about half an hour on two CPUs.

    python benchmarks/suite.py [--quick | --targets | --works CartPole-v1 ... --n 8 32 --workers 2] [--out FOLDER]

Writes `index.md`, plots and `results.json`.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import torch
from suite import grid
from suite.contenders import CONTENDERS
from suite.end_to_end import TRAININGS
from suite.machine import about
from suite.report import write_page
from suite.results import Results
from suite.run import PARTS, Options, quiet, run
from suite.workloads import WORKS

ROOT = Path(__file__).parents[1]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--quick", action="store_true", help="four works, few rounds, no trainings and starts")
    kind.add_argument("--targets", action="store_true", help="only what the targets speak of")
    kind.add_argument("--works", nargs="+", choices=list(WORKS), metavar="WORK", help=", ".join(WORKS))
    kind.add_argument("--page-of", type=Path, metavar="JSON", help="write the page of an earlier run again")
    parser.add_argument("--n", nargs="+", type=int, default=[32], help="environments, with --works")
    parser.add_argument("--workers", nargs="+", type=int, default=[2], help="with --works")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), metavar="NAME", help="with --works")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="of the run; by default all, with --works the steps")
    parser.add_argument("--rounds", type=int, help="turns of each contender")
    parser.add_argument("--seconds", type=float, help="of a turn")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for page, plots and JSON")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for the numbers alone, without a page")
    return parser.parse_args(arguments)


def options_of(given: argparse.Namespace) -> Options:
    """How thorough the run is to be."""
    if given.quick:
        tasks, parts, rounds, seconds = grid.quick(), ("steps",), 5, 0.1
    elif given.targets:
        tasks, parts, rounds, seconds = grid.targets(), PARTS, 15, 0.2
    elif given.works:
        tasks = grid.chosen(given.works, given.n, given.workers, given.contenders or list(CONTENDERS))
        parts, rounds, seconds = ("steps",), 7, 0.2
    else:
        tasks, parts, rounds, seconds = grid.full(), PARTS, 7, 0.2
    return Options(
        tasks,
        given.parts or parts,
        given.rounds or rounds,
        given.seconds or seconds,
        trainings=TRAININGS,
        n=given.n[0],
    )


def main() -> None:
    arguments = sys.argv[1:]
    given = parse(arguments)
    whole = not (given.quick or given.targets or given.works or given.parts)
    folder = given.out or ROOT / ("docs/benchmarks" if whole else "bench-results")
    if given.page_of:
        write_page(folder, Results.load(given.page_of))
        return
    # A policy as small as these is no faster with more, and their idle spinning slows the environments.
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with quiet() as console:
        path = given.json or folder / "results.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        results = run(about("benchmarks/suite.py", arguments), options_of(given), console, lambda some: some.save(path))
        if given.json:
            results.save(path)
        else:
            write_page(folder, results)
        console.print(f"Saved in {given.json or folder}", highlight=False)


if __name__ == "__main__":
    main()
