"""What of an environment goes on when another worker takes it over between two episodes.

The environment itself does not move: it may hold what cannot be pickled, and whatever it leaks. A new
one is made by the same factory, and gets from here what the next episode depends on:

* the random generator of the environment (``np_random``), so that its stream goes on;
* of each wrapper the attributes that are plain data (numbers, arrays, text, and containers of such), as the
  counts of ``Monitor`` or the running mean of ``NormalizeObservation``;
* with the last environment of a worker the state of the global generators, ``random`` and ``np.random``.

All else begins anew.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Parcel", "global_generators", "restore_global_generators", "take_along", "take_over"]

#: Where Gymnasium's environments, and those of old Gym, keep their generator and its seed.
_GENERATORS = ("_np_random", "_np_random_seed", "np_random")

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.ndarray, np.random.Generator, np.dtype)
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)


class Parcel(NamedTuple):
    """What one environment takes along.

    Attributes:
        attributes: See :func:`take_along`.
        generators: See :func:`global_generators`; None but for one of the last environments of a worker.
        options: Of its last explicit reset.
        resets: How many automatic ones there were since.
        ended: Whether the next step has to reset it.
        seed: The last that it was reset with, where NaN is searched for.
    """

    attributes: list[dict[str, Any]]
    generators: tuple[Any, Any] | None
    options: Any
    resets: int
    ended: bool
    seed: Any


def take_along(env: Any) -> list[dict[str, Any]]:
    """What the successor of an environment needs: attributes of each wrapper, outermost first, then of the environment.

    The values are the environment's own: pickle them before it goes on.
    """
    *wrappers, innermost = _layers(env)
    found = [{name: value for name, value in vars(layer).items() if _is_plain(value)} for layer in wrappers]
    attributes = getattr(innermost, "__dict__", {})
    return [*found, {name: attributes[name] for name in _GENERATORS if attributes.get(name) is not None}]


def take_over(env: Any, attributes: list[dict[str, Any]]) -> None:
    """Give an environment what one from the same factory took along."""
    for layer, values in zip(_layers(env), attributes, strict=True):
        if values:
            vars(layer).update(values)


def global_generators() -> tuple[Any, Any]:
    """The state of ``random`` and ``np.random``."""
    return random.getstate(), np.random.get_state()


def restore_global_generators(state: tuple[Any, Any]) -> None:
    """Go on from the state of another process."""
    random.setstate(state[0])
    np.random.set_state(state[1])


def _layers(env: Any) -> Iterator[Any]:
    while True:
        yield env
        inner = getattr(env, "__dict__", {}).get("env")
        if inner is None or not hasattr(inner, "step"):
            return
        env = inner


def _is_plain(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, Mapping):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    if isinstance(value, _CONTAINERS):
        return all(map(_is_plain, value))
    # The running statistics that normalizations keep, in Gymnasium and elsewhere.
    attributes = getattr(value, "__dict__", {})
    return attributes.keys() >= {"mean", "var", "count"} and all(map(_is_plain, attributes.values()))
