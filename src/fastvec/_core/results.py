"""What comes out of a step or a reset; :mod:`fastvec._core.reading` makes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastvec._core.protocol import StepNews

__all__ = ["Part", "ResetResult", "SomeResult", "StepResult"]


class StepResult(NamedTuple):
    """One step of all environments. Every array and dict is the caller's, and nothing writes to it any more.

    Attributes:
        observations: Arrays ``(num_envs, *shape)`` of the declared dtypes, nested as declared. Where an episode
            has ended it is the first one of the next.
        rewards: ``(num_envs,) float64``.
        flags: One byte an environment, bits of :class:`~fastvec._core.layout.StepFlag`.
        infos: What each environment returned beside; where that was asked for and all returned the same keys with
            numbers of the same types, fresh ``(num_envs, ...)`` arrays by key.
        finals: The last observation of each episode that has ended, by environment, as the environment gave it.
        reset_infos: Infos of the resets that followed, by environment, where they were not empty.
    """

    observations: Any
    rewards: NDArray[np.float64]
    flags: bytes
    infos: Any
    finals: dict[int, Any]
    reset_infos: dict[int, Any]


class ResetResult(NamedTuple):
    """A reset of some or all environments; see :class:`StepResult`. Without a reset an info is empty."""

    observations: Any
    infos: list[dict[Any, Any]]


class SomeResult(NamedTuple):
    """One step of some environments, see :class:`StepResult`; all is in the order of ``env_ids``.

    Attributes:
        env_ids: ``(k,) int64``, in the order in which they were ready.
        observations: Arrays ``(k, *shape)``, fresh.
        rewards: ``(k,) float64``.
        flags: ``(k,) uint8``.
        infos: k of them.
        finals, reset_infos: By place in ``env_ids``.
    """

    env_ids: NDArray[np.int64]
    observations: Any
    rewards: NDArray[np.float64]
    flags: NDArray[np.uint8]
    infos: list[dict[Any, Any]]
    finals: dict[int, Any]
    reset_infos: dict[int, Any]


class Part(NamedTuple):
    """Environments that one runner has stepped together: its slot, their rows in ascending order, and its news."""

    slot: int
    rows: list[int]
    news: StepNews
