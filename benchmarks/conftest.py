"""One contender of the suite at a time, for pytest-benchmark, and a look at whether it has computed the right thing."""

from __future__ import annotations

import pytest
from suite.contenders import CONTENDERS
from suite.interleave import REFERENCE, Seat
from suite.stepper import same
from suite.workloads import WORKS, Plan

#: Of the batch, in a round, and the rounds.
STEPS, ROUNDS = 20, 20


@pytest.fixture
def measure(benchmark):
    """Times some steps of a contender and compares the observations after them with the reference's."""

    def measure(contender: str, work: str, n: int = 32, workers: int = 2) -> None:
        chosen, plan = CONTENDERS[contender], Plan(WORKS[work], n, workers)
        benchmark.group = f"{work}, {n} environments"
        if why := chosen.why_not(plan):
            pytest.skip(why)
        seat = Seat(chosen, plan)
        try:
            seat.stepper.restart()
            benchmark.pedantic(seat.advance, (STEPS,), rounds=ROUNDS, warmup_rounds=1)
            if benchmark.stats is not None:
                benchmark.extra_info["env_steps_per_second"] = round(STEPS * n / benchmark.stats.stats.median)
            if not chosen.not_compared:
                assert same(seat.observations, expected(plan, seat.position)), "computed something else"
        finally:
            seat.stepper.close()

    return measure


def expected(plan: Plan, steps: int) -> object:
    """What the environments show after some steps."""
    reference = Seat(CONTENDERS[REFERENCE], plan)
    try:
        reference.stepper.restart()
        reference.advance(steps)
        return reference.observations
    finally:
        reference.stepper.close()
