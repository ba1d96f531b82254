"""Seeds for many environments from what a user gives."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from gymnasium import Space

from fastvec.errors import ConfigError

__all__ = ["Seeding", "Seeds", "action_seed", "check_seeding", "seed_actions", "seeds_of"]

Seeds: TypeAlias = "int | Sequence[int | None] | None"
Seeding: TypeAlias = 'Literal["sequential", "spawn"]'


def check_seeding(seeding: Any) -> Seeding:
    """The option again, if it is one."""
    if seeding not in ("sequential", "spawn"):
        raise ConfigError(f"seeding must be 'sequential' or 'spawn', got {seeding!r}")
    kind: Seeding = seeding
    return kind


def seeds_of(seed: Any, num_envs: int, seeding: Seeding = "sequential") -> list[int | None]:
    """A seed for each environment.

    Args:
        seed: A sequence of them, None for none, or a number that they all follow from.
        num_envs: How many.
        seeding: From a number s: ``s, s + 1, ...``, or 63 bits from each of ``SeedSequence(s).spawn(num_envs)``.

    Raises:
        ConfigError: It is neither, or a sequence of another length.
    """
    if seed is None:
        return [None] * num_envs
    try:
        first = operator.index(seed)
    except TypeError:  # an array of several numbers has __index__ too
        pass
    else:
        if seeding == "sequential":
            return [first + index for index in range(num_envs)]
        return [_word(child) for child in np.random.SeedSequence(first).spawn(num_envs)]
    try:
        seeds = [None if one is None else operator.index(one) for one in seed]
    except TypeError:
        raise ConfigError(f"seed must be an integer or a list of integers, one an environment, got {seed!r}") from None
    if len(seeds) != num_envs:
        raise ConfigError(f"seed must be one number or a list of {num_envs}, one an environment: got {len(seeds)}")
    return seeds


def action_seed(seed: int, num_envs: int) -> int:
    """A seed for action spaces, independent of those that ``"spawn"`` gives to the environments."""
    return _word(np.random.SeedSequence(seed).spawn(num_envs + 1)[-1])


def seed_actions(seed: Any, num_envs: int, seeding: Seeding, *action_spaces: Space[Any]) -> None:
    """Seed action spaces where one number is given for everything and ``"spawn"`` is asked for."""
    if seeding == "spawn" and isinstance(seed, (int, np.integer)):
        for space in action_spaces:
            space.seed(action_seed(int(seed), num_envs))


def _word(sequence: np.random.SeedSequence) -> int:
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
