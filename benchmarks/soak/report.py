"""The numbers of a run: as a line, as a text, as JSON and as a page of the documentation."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from soak.growth import Long
from soak.leaks import MB, Memory, growth
from soak.outcome import Outcome

#: The page, with names of what is put into it.
TEMPLATE = Path(__file__).with_name("page.md")


@dataclass
class Report:
    """The sum of all scenarios."""

    arguments: dict[str, Any]
    seconds: float = 0.0
    scenarios: int = 0
    steps: int = 0
    env_steps: int = 0
    values: int = 0
    restarts: int = 0
    recycled: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    faults: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    bad_ones: list[dict[str, Any]] = field(default_factory=list)
    wrong: int = 0
    hangs: int = 0
    left: int = 0
    broken: int = 0
    memory: list[Memory] = field(default_factory=list)
    longs: list[Long] = field(default_factory=list)

    @classmethod
    def begin(cls, arguments: dict[str, Any]) -> Report:
        return cls({name: arguments[name] for name in ("minutes", "seed")})

    def add(self, outcome: Outcome, memory: Memory) -> None:
        self.scenarios += 1
        for name in ("steps", "env_steps", "values", "restarts", "recycled"):
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        self.acts += outcome.acts
        self.faults += outcome.faults
        for name in ("wrong", "hangs", "left", "broken"):
            setattr(self, name, getattr(self, name) + len(getattr(outcome, name)))
        self.memory.append(memory)
        if outcome.bad and len(self.bad_ones) < 100:
            names = ("seed", "plan", "wrong", "hangs", "left", "broken")
            self.bad_ones.append({name: getattr(outcome, name) for name in names})

    def add_long(self, long: Long) -> None:
        self.longs.append(long)
        self.steps += long.steps
        self.env_steps += long.env_steps
        self.values += long.steps
        if long.wrong:
            self.wrong += 1
            self.bad_ones.append({"long life": long.wrong})

    @property
    def bad(self) -> bool:
        return bool(self.bad_ones)

    @property
    def survived(self) -> int:
        return sum(self.faults.values())

    def parent_growth(self) -> float | None:
        """Bytes in 10^5 steps, over all scenarios and long lives."""
        return growth(self.memory, lambda memory: memory.rss)

    def long_growth(self) -> list[float]:
        """The same within each long life."""
        slopes = [growth(long.parent, lambda memory: memory.rss) for long in self.longs]
        return [slope for slope in slopes if slope is not None]

    def worker_growth(self) -> list[float]:
        return [slope for long in self.longs for slope in long.worker_growth()]

    def line(self) -> str:
        return f"{self.scenarios} scenarios, {self.steps} steps, {self.survived} faults, {self.wrong} wrong values"

    def rows(self) -> list[tuple[str, str]]:
        """What is told, in words."""
        return [
            ("duration", f"{self.seconds / 60:.1f} minutes"),
            ("scenarios", f"{self.scenarios:,}"),
            ("steps of a batch", f"{self.steps:,}"),
            ("steps of single environments", f"{self.env_steps:,}"),
            ("results compared", f"{self.values:,}"),
            ("**wrong values**", f"**{self.wrong}**"),
            ("faults survived", f"{self.survived:,}"),
            ("workers replaced after a fault", f"{self.restarts:,}"),
            ("workers replaced for their age", f"{self.recycled:,}"),
            ("hangs", f"{self.hangs}"),
            ("processes, descriptors, threads or files left", f"{self.left}"),
            ("failures of the program itself", f"{self.broken}"),
            ("growth of the program in 10^5 steps, all scenarios", _megabytes(self.parent_growth())),
            ("growth of the program in 10^5 steps of one long run", _worst(self.long_growth())),
            ("growth of a worker in 10^5 steps of one long run", _worst(self.worker_growth())),
        ]

    def text(self) -> str:
        return "\n".join(f"{name.strip('*'):55}{value.strip('*')}" for name, value in self.rows())

    def as_json(self) -> str:
        numbers = {
            "arguments": self.arguments,
            "versions": versions(),
            "cpus": len(os.sched_getaffinity(0)),
            "seconds": self.seconds,
            **{name: getattr(self, name) for name in ("scenarios", "steps", "env_steps", "values", "restarts")},
            **{name: getattr(self, name) for name in ("recycled", "wrong", "hangs", "left", "broken", "bad_ones")},
            "acts": dict(self.acts),
            "faults": [[*key, count] for key, count in sorted(self.faults.items())],
            "growth": {
                "program": self.parent_growth(),
                "program in a long run": self.long_growth(),
                "worker in a long run": self.worker_growth(),
            },
            "memory": self.memory,
            "long runs": [{"steps": long.steps, "workers": long.workers, "parent": long.parent} for long in self.longs],
        }
        return json.dumps(numbers, indent=1)

    def fault_table(self) -> str:
        """Rows are kinds of faults, columns where they happen."""
        places = ["constructor", "reset", "step", "late step", "call", "close", "outside"]
        rows = ["| | " + " | ".join(places) + " |", "|---|" + "--:|" * len(places)]
        for how in sorted({how for how, _, _ in self.faults}):
            cells = []
            for place in places:
                raised, restarted = (self.faults[how, place, on] for on in ("raise", "restart"))
                cells.append(f"{raised} / {restarted}" if raised or restarted else "")
            rows.append(f"| `{how}` | {' | '.join(cells)} |")
        return "\n".join(rows)

    def act_table(self) -> str:
        rows = ["| call | times |", "|---|--:|"]
        return "\n".join(rows + [f"| `{name}` | {count:,} |" for name, count in self.acts.most_common()])


def versions() -> dict[str, str]:
    names = ("numpy", "gymnasium", "stable-baselines3")
    return {"Python": platform.python_version(), **{name: version(name) for name in names}}


def _megabytes(size: float | None) -> str:
    return "too short to tell" if size is None else f"{size / MB:.3f} MB"


def _worst(sizes: list[float]) -> str:
    if not sizes:
        return "not measured"
    return f"{max(sizes) / MB:.3f} MB at most of {len(sizes)}, median {sorted(sizes)[len(sizes) // 2] / MB:.3f} MB"


def write_page(page: Path, result: Report) -> None:
    """A page of the documentation, and a chart beside it."""
    chart = page.with_suffix(".png")
    draw(chart, result)
    rows = "\n".join(f"| {name} | {value} |" for name, value in result.rows())
    said = ", ".join(f"{name} {number}" for name, number in versions().items())
    minutes, seed = result.arguments["minutes"], result.arguments["seed"]
    page.write_text(
        TEMPLATE.read_text().format(
            command=f"python benchmarks/soak.py --minutes {minutes:g} --seed {seed} --markdown {_shown(page)}",
            versions=said,
            system={"linux": "Linux"}.get(sys.platform, sys.platform),
            cpus=len(os.sched_getaffinity(0)),
            rows=rows,
            faults=result.fault_table(),
            acts=result.act_table(),
            chart=chart.name,
        )
    )


def _shown(page: Path) -> str:
    """The page's path without what is particular to this machine."""
    root = Path(__file__).resolve().parents[2]
    page = page.resolve()
    return str(page.relative_to(root)) if page.is_relative_to(root) else page.name


def draw(chart: Path, result: Report) -> None:
    """Memory over steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
    left.plot([m.steps for m in result.memory], [m.rss / MB for m in result.memory], label="resident")
    left.plot([m.steps for m in result.memory], [m.uss / MB for m in result.memory], label="private")
    left.set(title="the program, after each scenario", xlabel="steps", ylabel="MB", ylim=(0, None))
    left.legend()
    for long in result.longs:
        for samples in long.workers:
            right.plot([m.steps for m in samples], [m.uss / MB for m in samples], color="C0", alpha=0.4)
    right.margins(y=0.2)
    right.set(title="workers of the long runs, private", xlabel="steps", ylabel="MB", ylim=(0, None))
    figure.savefig(chart, dpi=90)
    pyplot.close(figure)
