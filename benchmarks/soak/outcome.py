"""What became of a scenario."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What became of a scenario.

    Attributes:
        seed: Its seed.
        plan: What was drawn, in words.
        steps: Steps of the batch.
        env_steps: Steps of single environments.
        acts: What was done, by the first word of its name.
        values: Results compared.
        faults: Survived, by kind and place and `on_failure`.
        restarts: Workers that were replaced after a fault.
        recycled: Workers that were replaced without one.
        wrong: Values that were not as expected.
        hangs: Acts that did not end.
        left: What was left behind.
        broken: Exceptions of this program itself.
        seconds: How long it took.
    """

    seed: int
    plan: str = ""
    steps: int = 0
    env_steps: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    values: int = 0
    faults: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    restarts: int = 0
    recycled: int = 0
    wrong: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        return bool(self.wrong or self.hangs or self.left or self.broken)
