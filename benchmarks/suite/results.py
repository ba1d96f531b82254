"""What came out: rates by round, their medians, and ratios with their spread; as JSON and back.

A ratio is taken within each round, and of these the median. Machines change their speed from one second to the next
(other tenants, the clock of the CPU), which a quotient of two turns that follow each other cancels, and a quotient of
two medians does not. The spread is that between the quartiles.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Cell", "Results", "Spread", "spread_of"]


class Spread(NamedTuple):
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """Half of what lies between the quartiles, as a part of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def spread_of(values: Sequence[float]) -> Spread:
    low, high = np.quantile(values, (0.25, 0.75))
    return Spread(median(values), float(low), float(high))


@dataclass
class Cell:
    """One comparison.

    Attributes:
        work: What was stepped.
        n: How many environments.
        workers: How many processes shared them.
        rates: By contender, steps of environments a second in each round.
        steps: By contender, the steps of the batch in a turn.
        checked: By contender, what a comparison of the observations said.
        left_out: By contender, why it did not take part.
    """

    work: str
    n: int
    workers: int
    rates: dict[str, list[float]]
    steps: dict[str, int] = field(default_factory=dict)
    checked: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, int]:
        return self.work, self.n, self.workers

    def __contains__(self, name: object) -> bool:
        return name in self.rates

    def rate(self, name: str) -> float:
        """The median of the steps a second."""
        return median(self.rates[name])

    def ratio(self, name: str, to: str) -> Spread:
        """How many times the rate of another, round by round."""
        return spread_of([one / other for one, other in zip(self.rates[name], self.rates[to], strict=True)])

    def overhead(self, name: str, limit: str) -> float:
        """Microseconds that a step of one environment takes longer than at a limit."""
        pairs = zip(self.rates[name], self.rates[limit], strict=True)
        return median(1e6 / one - 1e6 / other for one, other in pairs)


@dataclass
class Results:
    """A whole run.

    Attributes:
        about: Command, date, machine, versions.
        cells: The comparisons of bare steps.
        missing: Contenders that could not take part at all, and why; what this version lacks.
        learning: Trainings; see :mod:`suite.end_to_end`.
        start: Starts; see ``start_vs_sb3.py``.
        tails: Step times one by one; see :mod:`suite.tails`.
    """

    about: dict[str, Any]
    cells: list[Cell] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    learning: list[dict[str, Any]] = field(default_factory=list)
    start: dict[str, Any] = field(default_factory=dict)
    tails: dict[str, Any] = field(default_factory=dict)

    def cell(self, work: str, n: int = 32, workers: int = 2) -> Cell | None:
        return next((cell for cell in self.cells if cell.key == (work, n, workers)), None)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(_rounded(asdict(self)), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        data = json.loads(path.read_text())
        return cls(**data | {"cells": [Cell(**cell) for cell in data["cells"]]})


def _rounded(value: Any) -> Any:
    """To six digits, which is more than is known."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(one) for one in value]
    return value
