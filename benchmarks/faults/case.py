"""What a reproduction is, and the list of them all."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from faults.libraries import Library

#: Seconds that one operation may take before it is said to hang; starting processes may import PyTorch in each.
LIMIT, START_LIMIT = 10.0, 90.0

#: Where a reproduction writes what it is doing, for the process that watches it.
JOURNAL = "FAULTS_JOURNAL"


class Outcome(NamedTuple):
    """What was measured, in a few words, and whether it is right; None where the fault cannot occur or be provoked."""

    text: str
    right: bool | None


class Case(NamedTuple):
    """A fault.

    Attributes:
        entry: A letter for the kind and a number.
        title: What goes wrong, or should not.
        run: Reproduces it with a library; None where that cannot be done here.
        tests: Tests of fastvec that prove what is right, as `file::test`.
        not_yet: What would be right too and does not exist in fastvec yet.
        why_not: Why it cannot be reproduced.
    """

    entry: str
    title: str
    run: Callable[[Library], Outcome] | None
    tests: tuple[str, ...] = ()
    not_yet: str = ""
    why_not: str = ""


CASES: dict[str, Case] = {}


def case(entry: str, title: str, *tests: str, not_yet: str = "") -> Callable[[Any], Any]:
    """Put the function that reproduces a fault on the list."""

    def add(run: Callable[[Library], Outcome]) -> Callable[[Library], Outcome]:
        assert entry not in CASES, entry
        CASES[entry] = Case(entry, title, run, tests, not_yet)
        return run

    return add


def unmeasured(entry: str, title: str, why_not: str, *tests: str, not_yet: str = "") -> None:
    """Put a fault on the list that cannot be reproduced here."""
    assert entry not in CASES, entry
    CASES[entry] = Case(entry, title, None, tests, not_yet, why_not)


def phase(name: str, limit: float = LIMIT) -> None:
    """Say what is done now, and how many seconds it may take; nothing where nobody watches."""
    if JOURNAL in os.environ:
        with open(os.environ[JOURNAL], "a") as journal:
            journal.write(json.dumps({"phase": name, "limit": limit}) + "\n")


def session(leader: int) -> None:
    """Say that a session of processes belongs to this reproduction, and ends with it."""
    if JOURNAL in os.environ:
        with open(os.environ[JOURNAL], "a") as journal:
            journal.write(json.dumps({"session": leader}) + "\n")


def attempt(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, BaseException | None]:
    """What a function returns and None, or None and what it raises."""
    try:
        return function(*args, **options), None
    except (Exception, SystemExit) as error:
        return None, error


def told(error: BaseException | None) -> str:
    """Everything that an exception says, with its causes; not where in this program it was raised."""
    texts = []
    while error is not None:
        texts.append("".join(traceback.format_exception_only(type(error), error)))
        error = error.__cause__
    return "\n".join(texts)


def name_of(error: BaseException | None) -> str:
    """The class of an exception, in words."""
    return "raises nothing" if error is None else f"raises {type(error).__name__}"


def words(values: Any) -> str:
    """Numbers as one writes them: `1,2,3`."""
    return ",".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def number(count: int, what: str) -> str:
    """So many of something, in words."""
    return f"{count} {what}" + ("" if count == 1 else "es" if what.endswith("s") else "s")


def verdict(*parts: tuple[str, bool | None]) -> Outcome:
    """Several findings as one: right if all are, as far as they apply."""
    known = [right for _, right in parts if right is not None]
    return Outcome("; ".join(text for text, _ in parts if text), all(known) if known else None)
