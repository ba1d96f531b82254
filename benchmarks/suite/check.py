"""The regression suite: two runs, compared by how close each comes to the limits of its own machine and hour.

Seconds of different days cannot be compared, ratios of one interleaved run to the limits can. A ratio is worse if it
has fallen by more than what both runs spread, and by more than a twentieth, which is what two runs of the same
program differ by on a shared machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from suite.results import Cell, Results, Spread

__all__ = ["Change", "compare", "report"]

#: Of the old ratio; see above.
LEAST = 0.05


class Change(NamedTuple):
    """What became of a ratio between two runs."""

    work: str
    n: int
    workers: int
    contender: str
    limit: str
    old: Spread
    new: Spread

    @property
    def allowed(self) -> float:
        """By what part of itself the ratio may fall: what lies within half of the rounds of either run, twice."""
        return max(LEAST, 2 * (self.old.relative + self.new.relative))

    @property
    def is_worse(self) -> bool:
        return self.new.median < self.old.median * (1 - self.allowed)

    def __str__(self) -> str:
        return (
            f"{self.work}, n={self.n}, {self.workers} workers, {self.contender}: {self.new.median:.3f} of the "
            f"{self.limit}, was {self.old.median:.3f} (may fall by {self.allowed:.0%})"
        )


def ours(cell: Cell) -> Iterator[tuple[str, str]]:
    """Our contenders of a comparison, each with its limit: halves in turn can pass the lockstep one."""
    for name in cell.rates:
        if name.startswith("SharedMem"):
            yield name, "free limit" if "split" in name else "lockstep limit"


def compare(old: Results, new: Results) -> list[Change]:
    """Every ratio that both runs have."""
    before = {cell.key: cell for cell in old.cells}
    return [
        Change(*cell.key, name, limit, before[cell.key].ratio(name, limit), cell.ratio(name, limit))
        for cell in new.cells
        if cell.key in before
        for name, limit in ours(cell)
        if name in before[cell.key] and limit in cell and limit in before[cell.key]
    ]


def report(old: Results, new: Results) -> tuple[list[str], int]:
    """What to say of two runs, and the exit code: 1 if something got worse, 2 if nothing could be compared."""
    changes = compare(old, new)
    lines = []
    for what in ("cpu", "cpus"):
        one, other = old.about["machine"].get(what), new.about["machine"].get(what)
        if one != other:
            lines.append(f"note: another machine, {what} {other} in place of {one}")
    if not changes:
        return [*lines, "the two runs have no comparison in common"], 2
    worse = [change for change in changes if change.is_worse]
    lines += [f"worse: {change}" for change in worse]
    lines.append(f"{len(changes)} ratios compared, {len(worse)} worse")
    return lines, int(bool(worse))
