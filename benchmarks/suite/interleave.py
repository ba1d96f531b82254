"""One comparison: all contenders of a plan live side by side and take turns, so that a noisy machine hits them alike.

Before the first turn all take the same steps, and the observations after them are compared, so that nobody wins by
doing less. From there on each goes on with the same endless list of actions and takes as many steps in a turn as fit
into its time: what is a hundred times slower would otherwise take a hundred times as long, or the fastest too short.
Each turn begins with a tenth of its steps that are not timed, as the caches are still the predecessor's, and the order
moves on by one in each round.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from suite.contenders import Contender
from suite.results import Cell
from suite.stepper import Stepper, same
from suite.workloads import Plan

__all__ = ["REFERENCE", "Company", "Seat", "check", "compare"]

#: Whose observations are right.
REFERENCE = "DummyVecEnv"


class Seat:
    """A contender at work: what it is, its environments, and how far it has come."""

    def __init__(self, contender: Contender, plan: Plan) -> None:
        self.contender, self._n = contender, plan.n
        self.stepper: Stepper = contender.make(plan)
        self.position = 0
        self.steps = 1

    def advance(self, steps: int) -> float:
        """Seconds that the steps took."""
        turn = self.stepper.advance(self.position, steps)
        self.position += steps
        self.observations = turn.observations
        return turn.seconds

    def calibrate(self, seconds: float) -> None:
        """Find out how many steps take so long."""
        steps = 2
        while (took := self.advance(steps)) < seconds / 5:
            steps *= 3
        self.steps = max(2, round(steps * seconds / took))

    def turn(self) -> float:
        """Steps of environments a second."""
        self.advance(max(1, self.steps // 10))
        rate = self.steps * self._n / self.advance(self.steps)
        if self.contender.restless:
            time.sleep(self.contender.restless)
        return rate


class Company:
    """All who take part in one comparison.

    A peer that fails at anything is out of it, which is a result; where anybody else fails, so does the comparison.

    Attributes:
        seats: By name, those who are still there.
        left_out: Why the others are not.
    """

    def __init__(self, plan: Plan, contenders: Iterable[Contender]) -> None:
        self.seats: dict[str, Seat] = {}
        self.left_out: dict[str, str] = {}
        try:
            for contender in contenders:
                if why := contender.why_not(plan):
                    self.left_out[contender.name] = why
                    continue
                with self._tolerant(contender):
                    seat = self.seats[contender.name] = Seat(contender, plan)
                    seat.stepper.restart()
                    seat.advance(1)
        except BaseException:
            self.close()
            raise

    def each(self, act: Callable[[Seat], Any], order: Iterable[str] | None = None) -> dict[str, Any]:
        """What becomes of everybody's doing the same, one after the other."""
        found = {}
        for name in order or list(self.seats):
            if name in self.seats:
                with self._tolerant(self.seats[name].contender):
                    found[name] = act(self.seats[name])
        return found

    def close(self) -> None:
        for seat in self.seats.values():
            with contextlib.suppress(Exception if seat.contender.peer else ()):
                seat.stepper.close()
        self.seats = {}

    def __enter__(self) -> Company:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _tolerant(self, contender: Contender) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not contender.peer:
                raise
            self.left_out[contender.name] = f"fails: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            if seat := self.seats.pop(contender.name, None):
                with contextlib.suppress(Exception):
                    seat.stepper.close()


def check(company: Company, steps: int) -> dict[str, str]:
    """Take the same steps with all; what was compared, and with what outcome.

    Raises:
        AssertionError: One of those who must not differ has computed something else.
    """
    company.each(lambda seat: seat.advance(steps))
    seats = company.seats
    checked = {}
    for name, seat in seats.items():
        contender = seat.contender
        if contender.not_compared or REFERENCE not in seats:
            checked[name] = f"not compared: {contender.not_compared or f'{REFERENCE} is not there'}"
        elif same(seat.observations, seats[REFERENCE].observations):
            checked[name] = "equal"
        elif contender.peer:
            checked[name] = "DIFFERENT"
        else:
            raise AssertionError(f"{name} computed something else than {REFERENCE}")
    return checked


def compare(
    plan: Plan,
    contenders: Iterable[Contender],
    rounds: int,
    seconds: float,
    tell: Callable[[str], None] = lambda _: None,
) -> Cell:
    """Steps a second of each contender, by round.

    Args:
        plan: What they do.
        contenders: Who.
        rounds: How many turns each has.
        seconds: How long a turn takes.
        tell: Is told what goes on.
    """
    tell("builds")
    with Company(plan, contenders) as company:
        tell("compares values")
        took = company.each(lambda seat: seat.advance(1))
        slowest = took.get(REFERENCE, max(took.values()))
        checked = check(company, min(100, max(2, int(2 * seconds / slowest))))
        company.each(lambda seat: seat.calibrate(seconds))
        order = list(company.seats)
        turns = []
        for turn in range(rounds):
            tell(f"round {turn + 1} of {rounds}")
            turns.append(company.each(Seat.turn, order))
            order = order[1:] + order[:1]
        rates = {name: [turn[name] for turn in turns] for name in company.seats}
        steps = {name: company.seats[name].steps for name in rates}
        return Cell(plan.work.name, plan.n, plan.workers, rates, steps, checked, company.left_out)
