"""What all contenders have in common once they are built: a stepper, which takes steps and says how long they took."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

__all__ = ["Stepper", "Turn", "batch", "same"]


class Turn(NamedTuple):
    """Seconds that some steps took, and the observations after them."""

    seconds: float
    observations: Any


class Stepper(Protocol):
    """A batch of environments, in the hands of one contender."""

    def restart(self) -> Any:
        """Reset all environments, environment ``i`` with the seed ``i``."""

    def advance(self, first: int, steps: int) -> Turn:
        """Take some steps, from the plan's ``first`` actions on. What ends is reset."""

    def close(self) -> None:
        """Give everything back."""


def batch(observations: list[Any]) -> Any:
    """One observation an environment as arrays, nested as they are."""
    if isinstance(observations[0], dict):
        return {key: np.stack([one[key] for one in observations]) for key in observations[0]}
    return np.stack(observations)


def same(one: Any, other: Any) -> bool:
    """Whether two batches hold the same values."""
    if getattr(one, "dtype", np.dtype(bool)).hasobject:  # an array of dicts or arrays
        one = batch(list(one))
    if isinstance(other, dict):
        return all(same(one[key], value) for key, value in other.items())
    return bool(np.array_equal(one, other))
