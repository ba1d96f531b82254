"""A run as a page of the documentation."""

from __future__ import annotations

from pathlib import Path

from suite import plots
from suite.end_to_end import PARTS, seconds, times, title
from suite.results import Cell, Results
from suite.tables import bold, table
from suite.targets import OTHERS, STEPS, Target, reached

__all__ = ["write_page"]

#: The page, with names of what is put into it.
TEMPLATE = Path(__file__).with_name("page.md")
LIMIT = "lockstep limit"
#: Whom a user might take instead: they do the same work, and give the same values.
RIVALS = ("DummyVecEnv", "SubprocVecEnv", "SyncVectorEnv", "AsyncVectorEnv", "PufferLib", "Tianshou", "TorchRL")
OURS = ("SharedMemVecEnv", "SharedMemVecEnv tuned", "SharedMemVecEnv serial", "SharedMemVectorEnv")
SPLIT = "SharedMemVecEnv two splits"
NOTHING = "Not measured in this run."
ABSENT = "-"
#: Below this many rounds, or above this load for each CPU, a run says little.
FEW_ROUNDS, HIGH_LOAD = 5, 0.5


def write_page(folder: Path, results: Results) -> None:
    """Write ``index.md``, its plots and ``results.json`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    results.save(folder / "results.json")
    about, machine = results.about, results.about["machine"]
    met, measured = reached(results)
    text = TEMPLATE.read_text().format(
        command=about["command"],
        date=about["date"],
        cpu=machine["cpu"],
        cpus=machine["cpus"],
        memory=machine["memory_gib"],
        system=machine["system"],
        load=f"{machine['load_average'][0]:.1f}",
        versions=", ".join(f"{name} {version}" for name, version in about["versions"].items()),
        warning=warning(results),
        targets=matrix(results),
        other_targets=table(
            ["", "", "measured", "target"],
            [[one.row, one.column, outcome(one, results), wanted(one)] for one in OTHERS],
        ),
        reached=f"{met} of {measured} targets that this run measured are reached, of {len(STEPS + OTHERS)} in all.",
        losses=losses(results),
        works=works(results),
        sizes=sizes(results),
        workers=workers(results),
        learning=learning(results),
        tails=tails(results),
        start=start(results),
        left_out=left_out(results),
    )
    for name, draw in (("works", plots.works), ("sizes", plots.sizes), ("learning", plots.learning)):
        if draw(results, folder / f"{name}.png"):
            continue
        # What was not measured has no picture.
        text = "\n".join(line for line in text.splitlines() if f"({name}.png)" not in line) + "\n"
    (folder / "index.md").write_text(text)


def warning(results: Results) -> str:
    """What a reader should know before believing a number."""
    machine = results.about["machine"]
    rounds = min((len(rates) for cell in results.cells for rates in cell.rates.values()), default=0)
    doubts = []
    if rounds < FEW_ROUNDS:
        doubts.append(f"it has only {rounds} rounds")
    if machine["load_average"][0] > HIGH_LOAD * machine["cpus"]:
        doubts.append("other programs used the CPUs at the same time")
    return f"**Do not rely on this run: {' and '.join(doubts)}.**" if doubts else "Nothing else ran on the machine."


def outcome(target: Target, results: Results) -> str:
    """A figure and whether it is good enough, or why there is none."""
    value = target.measure(results)
    if isinstance(value, str):
        return value
    return f"{figure(value)} {'✓' if target.met(value) else '✗'}"


def figure(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def wanted(target: Target) -> str:
    return f"{'≤' if target.falling else '≥'} {target.least:g}"


def matrix(results: Results) -> str:
    """The targets of bare steps, one row a work."""
    columns = list(dict.fromkeys(target.column for target in STEPS))
    rows: dict[str, dict[str, str]] = {}
    for target in STEPS:
        rows.setdefault(target.row, {})[target.column] = f"{outcome(target, results)} ({wanted(target)})"
    return table(["", *columns], [[row, *(cells.get(column, "") for column in columns)] for row, cells in rows.items()])


def losses(results: Results) -> str:
    """Every comparison in which somebody else who does the same work is faster than our default setting."""
    lines = []
    for cell in results.cells:
        if "SharedMemVecEnv" not in cell:
            continue
        faster = {name: cell.ratio("SharedMemVecEnv", name) for name in RIVALS if name in cell}
        faster = {name: ratio for name, ratio in faster.items() if ratio.median < 1}
        if faster:
            said = ", ".join(f"{ratio.median:.2f} times {name}" for name, ratio in faster.items())
            lines.append(f"- {cell.work}, {cell.n} environments, {cell.workers} workers: {said}.")
    return "\n".join(lines) or "In no comparison of this run."


def works(results: Results) -> str:
    names = [*RIVALS, "EnvPool", *OURS, SPLIT]
    cells = [cell for cell in results.cells if (cell.n, cell.workers) == (32, 2)]
    names = [name for name in names if any(name in cell for cell in cells)]
    if not cells:
        return NOTHING
    return table(["", "steps/s at the limit", *names], [work_row(cell, names) for cell in cells])


def work_row(cell: Cell, names: list[str]) -> list[str]:
    best = max((name for name in names if name in cell and name != "EnvPool"), key=cell.rate)
    row = [cell.work, f"{cell.rate(LIMIT):,.0f}"]
    for name in names:
        if name not in cell:
            row.append(ABSENT)
            continue
        ratio = cell.ratio(name, LIMIT)
        text = f"{ratio.median:.2f}" + (f" ± {ratio.relative:.0%}" if name in OURS or name == SPLIT else "")
        row.append(bold(text) if name == best else text)
    return row


def sizes(results: Results) -> str:
    names = ("DummyVecEnv", "SubprocVecEnv", "SharedMemVecEnv", "SharedMemVecEnv tuned", "SharedMemVecEnv serial")
    cells = sorted((cell for cell in results.cells if cell.workers == 2), key=lambda cell: (cell.work, cell.n))
    swept = {cell.work for cell in cells if sum(one.work == cell.work for one in cells) > 1}
    rows = [
        [cell.work, f"{cell.n}", *(f"{cell.overhead(name, LIMIT):.2f}" if name in cell else ABSENT for name in names)]
        for cell in cells
        if cell.work in swept
    ]
    return table(["", "environments", *names], rows) if rows else NOTHING


def workers(results: Results) -> str:
    names = (LIMIT, "SharedMemVecEnv", "SharedMemVecEnv tuned", SPLIT, "SubprocVecEnv", "DummyVecEnv")
    cells = sorted((cell for cell in results.cells if cell.n == 32), key=lambda cell: (cell.work, cell.workers))
    swept = {cell.work for cell in cells if sum(one.work == cell.work for one in cells) > 1}
    rows = [
        [cell.work, f"{cell.workers}", *(f"{cell.rate(name) / 1000:.3g}" if name in cell else ABSENT for name in names)]
        for cell in cells
        if cell.work in swept
    ]
    return table(["", "workers", *names], rows) if rows else NOTHING


def learning(results: Results) -> str:
    rows = []
    for found in results.learning:
        for name, parts in found["runs"].items():
            split = [f"{seconds(found, name, part):.3f}" if part in parts else ABSENT for part in PARTS]
            collection = f"{seconds(found, name, 'collection'):.3f}"
            rows.append(
                [title(found), name, *split[:-1], collection, split[-1], f"{times(found, name, 'DummyVecEnv'):.2f}"]
            )
    head = ["", "", *PARTS[:-1], "collection", PARTS[-1], "collection × DummyVecEnv"]
    return table(head, rows) if rows else NOTHING


def tails(results: Results) -> str:
    found = results.tails
    if not found:
        return NOTHING
    head = (
        f"Milliseconds of a step of {found['n']} {found['work']} with random actions, {found['steps']} steps each.\n\n"
    )
    marks = ("p50", "p90", "p99", "max")
    return head + table(
        ["", *marks], [[name, *(f"{ms[mark]:.1f}" for mark in marks)] for name, ms in found["ms"].items()]
    )


def start(results: Results) -> str:
    found = results.start
    if not found:
        return NOTHING
    head = (
        f"{found['n']} environments {found['work']} through `make_vec_env` under `forkserver`, reset once, "
        f"in a fresh program; medians of {found['rounds']}.\n\n"
    )
    rows = [
        [name, f"{run['seconds']:.1f}", f"{run['private_mb']:.0f}", f"{run['all_mb']:.0f}"]
        for name, run in found["runs"].items()
    ]
    return head + table(["", "seconds until ready", "MB private, each worker", "MB, all processes"], rows)


def left_out(results: Results) -> str:
    """Who does not take part where, and why, shortly."""
    found: dict[tuple[str, str], list[str]] = {}
    for cell in results.cells:
        for name, why in cell.left_out.items():
            if name not in results.missing:
                found.setdefault((name, why), []).append(f"{cell.work} ({cell.n}, {cell.workers} workers)")
    different = [
        f"{name} on {cell.work} gave other observations"
        for cell in results.cells
        for name, said in cell.checked.items()
        if said == "DIFFERENT"
    ]
    parts = [f"{name} everywhere ({why})" for name, why in results.missing.items()]
    for (name, why), where in found.items():
        parts.append(
            f"{name} in {len(where)} comparisons ({why})" if len(where) > 1 else f"{name} in {where[0]}: {why}"
        )
    return "; ".join([*parts, *different]) + "." if parts or different else "Nobody."
