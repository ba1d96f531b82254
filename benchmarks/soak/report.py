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
from soak.scenario import Outcome


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
        PAGE.format(
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
    right.set(title="workers of the long runs, private", xlabel="steps", ylabel="MB", ylim=(0, None))
    figure.savefig(chart, dpi=90)
    pyplot.close(figure)


PAGE = """# Endurance

What a long run of random environments, options, calls and faults has found. This page was written by

```
{command}
```

with {versions}, on {system} with {cpus} CPUs.

{rows_head}{rows}

![memory over steps]({chart})

## What is done

For the given time, one scenario after the other is drawn from the seed. A scenario is a batch of environments of one of the three classes
(`SharedMemVecEnv` of Stable-Baselines3, `SharedMemVectorEnv`, `fastvec.baselines`), with a random observation space (arrays of nine dtypes, numbers,
`Dict` and `Tuple` nested in each other, `Text`, `Sequence`, `Graph`, `OneOf`), 1 to 12 environments on 1 to 6 workers in even and uneven splits, each
start method, autoreset mode and kind of info, and random `on_failure`, `check_nan`, `reset_options`, `seeding`, `copy` and timeouts. It lives for
some hundred to some thousand steps, with resets with and without seeds, options and masks between them, calls between steps and between
`step_async()` and `step_wait()`, calls that fail, calls out of order, waits that time out, and steps that are dropped; it is closed in any state,
and used after that.

**Everything that comes back is compared** with what the same class returns for the same calls with `num_workers=0`: observations, rewards, flags,
infos, last observations, results and exceptions of calls, bit for bit, with types, dtypes, shapes and the order of keys.

**Faults are real.** Environments in workers raise, exit, kill their own process, crash, hang and return NaN, in `step()`, `reset()`, calls, `close()`
and in the constructor of a replacement; others are killed from outside, idle or in a step. With `on_failure="raise"` the error must come, be
of the right type and blame the right environment or worker, nothing but `close()` must work afterwards, and `close()` must return in time. With
`on_failure="restart"` the run goes on, and its values are compared as before, with a model in the place of the lost worker that is written in terms
of what the [guide](../guides/sb3.md#go-on-after-a-failure) promises ([oracle.py](../../benchmarks/soak/oracle.py)).

**What is left** is counted after each scenario: processes, open descriptors, threads, entries of `/dev/shm`, temporary files.

**Memory** of the program is taken after each scenario. Its growth is the median of the slopes between all pairs of samples (Theil and Sen), without
the first fifth: single jumps, as allocators make them, move it little, steady growth all of it. Every five minutes there is a long run of 120,000
cheap steps, without faults, in which the private memory of the workers is taken too.

## Faults survived

With `on_failure="raise"` / with `on_failure="restart"`, by where they happened.

{faults}

## Calls made

{acts}

## Run it yourself

```
python benchmarks/soak.py --minutes 10 --seed 1
```

It needs Stable-Baselines3, `rich`, `psutil` and, for the page, `matplotlib`. If something is wrong it says so at once, with the seed of the scenario,
and ends with exit code 1; `python benchmarks/soak.py --scenario SEED` runs that scenario alone.

## Not covered

Environments that draw from generators other than their own `np_random`; rendering, video and wrappers; Ctrl-C (which has
[tests of its own](../../tests/test_interrupts.py)); CPU binding; more than 6 workers; machines short of memory or descriptors. Where two environments
of one call raise, either error may come, so that only one is made to. Reward and observations are random numbers, so that two wrong ones cannot
cancel, but the environments are cheap: timing is that of steps of some microseconds. With `num_workers=0` a step that is dropped by `reset()` is never
taken, in workers it is; the comparison takes it in both.
""".replace("{rows_head}", "| | |\n|---|--:|\n")
