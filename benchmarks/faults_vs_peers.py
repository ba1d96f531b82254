"""What does each library do in the faults that users of vectorized environments have reported?

Every reproduction in `faults/` is run with Stable-Baselines3's SubprocVecEnv, Gymnasium's AsyncVectorEnv and both of
fastvec's classes, each time in a process of its own. An operation that takes longer than 10 seconds (90 where
processes start) hangs, which is a result. Whatever a reproduction leaves behind is killed. Whether an outcome is
right is computed from what came back. The rules are in the functions, one a fault.

    python benchmarks/faults_vs_peers.py [--only A1 B3 ...] [--jobs 2] [--json FILE] [--markdown PAGE]

`--markdown` puts the tables into a page, between the two comments that mark their place.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from faults import (  # noqa: F401, each puts its functions on the list
    access,
    batches,
    crashes,
    ending,
    machine,
    memory,
    not_measured,
    seeding,
    spaces_and_infos,
    starting,
    values,
)
from faults.case import CASES, JOURNAL, START_LIMIT, Case, Outcome
from faults.libraries import LIBRARIES
from faults.processes import kill_session

#: Columns of the tables; one of ours is right if both classes are.
COLUMNS = {
    "fastvec": ["SharedMemVecEnv", "SharedMemVectorEnv"],
    "SB3": ["SubprocVecEnv"],
    "Gymnasium": ["AsyncVectorEnv"],
}

KINDS = {
    "A": "Values",
    "B": "Crashes and hangs",
    "C": "Memory",
    "D": "Starting",
    "E": "The machine",
    "F": "Seeds",
    "G": "Spaces and actions",
    "H": "Infos",
    "I": "Images",
    "J": "The end",
    "K": "Looking inside",
}

SIGNS = ("✓", "◐", "✗", "n/a")
MARKS = {True: "✓", False: "✗", None: "n/a"}

#: Not an outcome but a mistake in a reproduction.
BROKEN = "BROKEN REPRODUCTION"

#: The journals of the reproductions that run, by the leaders of their sessions.
RUNNING: dict[int, Path] = {}

Results = dict[tuple[str, str], Outcome]


def measure(task: tuple[Case, str]) -> Outcome:
    """What a fault does to a library, found out in a process of its own."""
    case, library = task
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        journal.touch()
        environ = os.environ | {JOURNAL: str(journal), "TMPDIR": folder, "CUDA_VISIBLE_DEVICES": ""}
        with open(Path(folder) / "output", "wb+") as output:
            process = subprocess.Popen(
                [sys.executable, __file__, "--child", case.entry, library],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            RUNNING[process.pid] = journal
            try:
                outcome = watch(process, journal)
            finally:
                clean_up(process.pid)
                process.wait()
        if outcome is None:
            shown = (Path(folder) / "output").read_text(errors="replace")
            print(f"--- the reproduction {case.entry} with {library} failed:\n{shown}", file=sys.stderr)
            return Outcome(BROKEN, False)
        return outcome


def clean_up(leader: int) -> None:
    """End what a reproduction and the sessions that it has begun have left behind."""
    journal = RUNNING.pop(leader)
    entries = map(json.loads, journal.read_text().splitlines())
    for session in (leader, *(entry["session"] for entry in entries if "session" in entry)):
        kill_session(session)


def end(*_: object) -> None:
    """On SIGTERM or Ctrl-C: leave nothing behind."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    for leader in list(RUNNING):
        clean_up(leader)
    os._exit(1)


def watch(process: subprocess.Popen[bytes], journal: Path) -> Outcome | None:
    """Wait for the outcome, or until an operation takes too long; None if the process ends without an outcome."""
    seen, doing, limit, since = 0, "the start", START_LIMIT, time.monotonic()
    while True:
        ended = process.poll() is not None
        entries = [json.loads(line) for line in journal.read_text().splitlines()[seen:]]
        seen += len(entries)
        for entry in entries:
            if "outcome" in entry:
                return Outcome(*entry["outcome"])
            if "phase" in entry:
                doing, limit, since = entry["phase"], entry["limit"], time.monotonic()
        if entries:
            continue
        if ended:
            return None
        if time.monotonic() - since > limit:
            return Outcome(f"hangs in {doing}", False)
        time.sleep(0.05)


def child(entry: str, library: str) -> None:
    """Run one reproduction, write its outcome, and end without any clean-up, which might hang."""
    outcome = CASES[entry].run(LIBRARIES[library])  # type: ignore[misc]
    with open(os.environ[JOURNAL], "a") as journal:
        journal.write(json.dumps({"outcome": [outcome.text, None if outcome.right is None else bool(outcome.right)]}))
        journal.write("\n")
    os._exit(0)


def combined(case: Case, column: str, results: Results) -> Outcome:
    """The outcome of a column, in which the classes' common words stand once."""
    names = COLUMNS[column]
    outcomes = [results[case.entry, name] for name in names]
    known = [outcome.right for outcome in outcomes if outcome.right is not None]
    texts = {outcome.text for outcome in outcomes}
    if len(texts) == 1:
        text = texts.pop()
    else:
        text = "; ".join(f"{name}: {outcome.text}" for name, outcome in zip(names, outcomes, strict=True))
    return Outcome(text, all(known) if known else None)


def mark(case: Case, column: str, outcome: Outcome) -> str:
    """✓ right, ◐ right but for what does not exist yet, ✗ wrong, n/a not a question here."""
    if column == "fastvec" and outcome.right and case.not_yet:
        return "◐"
    return MARKS[outcome.right]


def table(kind: str, results: Results) -> str:
    """The rows of a kind as Markdown."""
    rows = [f"| | what | here | proved by | {' | '.join(list(COLUMNS)[1:])} |", "|---|---|---|---|---|---|"]
    for case in sorted(CASES.values(), key=lambda case: int(case.entry[1:])):
        if case.entry[0] != kind:
            continue
        tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in case.tests) or "none"
        not_yet = f" Not yet: {case.not_yet}" if case.not_yet else ""
        if case.run is None:
            cells = [f"not measured: {case.why_not}.{not_yet}".removesuffix("."), tests, "", ""]
        else:
            outcomes = {column: combined(case, column, results) for column in COLUMNS}
            here, *peers = [
                f"{mark(case, column, outcome)} {escaped(outcome.text)}" for column, outcome in outcomes.items()
            ]
            cells = [here + (f".{not_yet}" if not_yet else ""), tests, *peers]
        rows.append(f"| {case.entry} | {case.title} | {' | '.join(cells)} |")
    return "\n".join(rows)


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def counts(cases: list[Case], results: Results) -> dict[str, Counter[str]]:
    """How often each mark stands in each column."""
    return {
        column: Counter(mark(case, column, combined(case, column, results)) for case in cases) for column in COLUMNS
    }


def sums(cases: list[Case], results: Results) -> str:
    """The counts as Markdown."""
    rows = ["| | ✓ right | ◐ in part | ✗ wrong | n/a |", "|---|--:|--:|--:|--:|"]
    for column, count in counts(cases, results).items():
        rows.append(f"| {column} | {' | '.join(str(count[sign]) for sign in SIGNS)} |")
    return "\n".join(rows)


def versions() -> str:
    names = ("numpy", "gymnasium", "stable-baselines3")
    return f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in names)


def as_markdown(cases: list[Case], results: Results) -> str:
    parts = [f"With {versions()}.", sums(cases, results)]
    parts += [f"## {title}\n\n{table(kind, results)}" for kind, title in KINDS.items()]
    return "\n\n".join(parts)


def put_into(page: Path, text: str) -> None:
    """Replace what stands between the comments."""
    begin, end = "<!-- measured: begin -->", "<!-- measured: end -->"
    whole = page.read_text()
    if whole.count(begin) != 1 or whole.count(end) != 1:
        sys.exit(f"{page} has no place for the tables: {begin} ... {end}")
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    page.write_text(pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", whole))


def show(case: Case, results: Results) -> None:
    print(f"{case.entry}  {case.title}")
    for name in LIBRARIES:
        if (case.entry, name) in results:
            outcome = results[case.entry, name]
            print(f"      {MARKS[outcome.right]:3} {name:18} {outcome.text}", flush=True)


def load(file: Path | None) -> Results:
    """What was measured before."""
    if file is None or not file.exists():
        return {}
    return {(entry, name): Outcome(text, right) for entry, name, text, right in json.loads(file.read_text())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="ENTRY", help="some faults")
    parser.add_argument("--libraries", nargs="+", choices=list(LIBRARIES), default=list(LIBRARIES))
    parser.add_argument("--jobs", type=int, default=2, help="reproductions at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep results there, beside those of earlier runs")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="put the tables into a page")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    every = sorted((case for case in CASES.values() if case.run), key=lambda case: (case.entry[0], int(case.entry[1:])))
    cases = every if arguments.only is None else [CASES[entry] for entry in arguments.only]
    results = load(arguments.json)
    with ThreadPoolExecutor(arguments.jobs) as threads:
        for case in cases:
            tasks = [(case, library) for library in arguments.libraries]
            outcomes = threads.map(measure, tasks)
            results |= {(case.entry, name): outcome for (_, name), outcome in zip(tasks, outcomes, strict=True)}
            show(case, results)
            if arguments.json:
                rows = [[*key, *outcome] for key, outcome in results.items()]
                arguments.json.write_text(json.dumps(rows, indent=1))
    complete = [case for case in every if all((case.entry, name) in results for name in LIBRARIES)]
    for column, count in counts(complete, results).items():
        print(f"{column}: {count['✓']} right, {count['◐']} in part, {count['✗']} wrong, {count['n/a']} n/a")
    if arguments.markdown:
        if len(complete) < len(every):
            sys.exit(f"only {len(complete)} of {len(every)} faults are measured: no page is written")
        put_into(arguments.markdown, as_markdown(complete, results))
    if any(outcome.text == BROKEN for outcome in results.values()):
        sys.exit("a reproduction is broken")


if __name__ == "__main__":
    main()
