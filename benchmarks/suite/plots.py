"""The pictures of the page: few, and one statement each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt

from suite.end_to_end import PARTS, seconds, title
from suite.results import Results

__all__ = ["learning", "sizes", "works"]

LIMIT = "lockstep limit"
STYLE = {
    "SubprocVecEnv": ("#9aa3ae", "s"),
    "DummyVecEnv": ("#5d6670", "o"),
    "AsyncVectorEnv": ("#d9b99b", "s"),
    "PufferLib": ("#c77dba", "^"),
    "Tianshou": ("#7fb069", "v"),
    "TorchRL": ("#e0a458", "<"),
    "SharedMemVecEnv": ("#2a78b5", "D"),
    "SharedMemVecEnv tuned": ("#0b3c63", "P"),
    "SharedMemVecEnv two splits": ("#d1495b", "*"),
}
PART_COLOURS = ("#2a78b5", "#7fb069", "#d1495b", "#e0a458", "#c9ced6")


def plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def works(results: Results, path: Path) -> bool:
    """What part of the lockstep limit each contender reaches, by work; False where there is nothing to draw."""
    cells = [cell for cell in results.cells if (cell.n, cell.workers) == (32, 2)]
    if not cells:
        return False
    figure, axes = plt.subplots(figsize=(9, 1.6 + 0.36 * len(cells)), layout="constrained")
    for name, (colour, marker) in STYLE.items():
        found = [(cell.ratio(name, LIMIT).median, row) for row, cell in enumerate(cells) if name in cell]
        if found:
            axes.scatter(*zip(*found, strict=True), color=colour, marker=marker, s=42, label=name, zorder=3)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(cells)), [cell.work for cell in cells])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="part of the lockstep limit, 32 environments, 2 workers")
    ticks = [tick for tick in (0.003, 0.01, 0.03, 0.1, 0.3, 1, 1.3) if tick >= axes.get_xlim()[0]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="y", color="#e6e8eb")
    plain(axes)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    save(figure, path)
    return True


def sizes(results: Results, path: Path) -> bool:
    """Microseconds a step of one environment over the number of environments, one panel a work."""
    cells = [cell for cell in results.cells if cell.workers == 2]
    works = [work for work in dict.fromkeys(cell.work for cell in cells) if sum(c.work == work for c in cells) > 1]
    if not works:
        return False
    figure, panels = plt.subplots(1, len(works), figsize=(3.6 * len(works) + 0.6, 3.6), layout="constrained")
    for axes, work in zip(np.atleast_1d(panels), works, strict=True):
        ours = sorted((cell for cell in cells if cell.work == work), key=lambda cell: cell.n)
        for name in (LIMIT, "DummyVecEnv", "SubprocVecEnv", "SharedMemVecEnv", "SharedMemVecEnv two splits"):
            found = [(cell.n, 1e6 / cell.rate(name)) for cell in ours if name in cell]
            if found:
                colour, marker = STYLE.get(name, ("black", ""))
                axes.plot(*zip(*found, strict=True), color=colour, marker=marker, label=name)
        axes.set(xscale="log", yscale="log", title=work, xlabel="environments", ylabel="µs a step of one environment")
        ticks = [cell.n for cell in ours]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        plain(axes)
    handles, labels = np.atleast_1d(panels)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    save(figure, path)
    return True


def learning(results: Results, path: Path) -> bool:
    """Seconds of a rollout, in their parts, one panel a training."""
    if not results.learning:
        return False
    rows = sum(len(found["runs"]) for found in results.learning)
    figure, panels = plt.subplots(
        len(results.learning),
        1,
        figsize=(9, 1.5 + 0.36 * rows + 0.5 * len(results.learning)),
        height_ratios=[len(found["runs"]) for found in results.learning],
        layout="constrained",
    )
    for axes, found in zip(np.atleast_1d(panels), results.learning, strict=True):
        names = list(found["runs"])
        left = np.zeros(len(names))
        for part, colour in zip(PARTS, PART_COLOURS, strict=True):
            known = [part in found["runs"][name] for name in names]
            width = [seconds(found, name, part) if there else 0.0 for name, there in zip(names, known, strict=True)]
            axes.barh(names, width, left=left, color=colour, label=part)
            left += width
        axes.set_title(title(found), loc="left")
        axes.invert_yaxis()
        plain(axes)
    np.atleast_1d(panels)[-1].set_xlabel("seconds of a rollout")
    handles, labels = np.atleast_1d(panels)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(PARTS), frameon=False)
    save(figure, path)
    return True


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110)
    plt.close(figure)
