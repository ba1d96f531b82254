"""What of an environment goes on when another worker takes it over between two episodes.

The environment itself does not move: it may hold what cannot be pickled, and whatever it leaks. A new
one is made by the same factory, and gets from here what the next episode depends on:

* the random generators of the environment (``np_random``), of the spaces of each layer, and those that a
  wrapper has, so that their streams go on;
* of each wrapper the attributes that are plain data (numbers, arrays, text, and containers of such), as the
  counts of ``Monitor`` or the running mean of ``NormalizeObservation``;
* with the last environment of a worker the state of the global generators, ``random`` and ``np.random``. Until
  then the new worker's own follow from it, but do not repeat it.

All else begins anew.
"""

from __future__ import annotations

import collections
import hashlib
import pickle
import random
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fastvec._core.pickles import dumps

__all__ = ["Parcel", "generators_to_come", "global_generators", "restore_global_generators", "take_along", "take_over"]

#: Where Gymnasium's environments, and those of old Gym, keep their generator and its seed.
_GENERATORS = ("_np_random", "_np_random_seed", "np_random")

#: What Gymnasium and wrappers call spaces.
_SPACES = ("observation_space", "action_space", "_observation_space", "_action_space")

_SCALARS = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)
_RANDOM = (np.random.Generator, np.random.RandomState, random.Random)
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)
#: Containers in containers, to this depth; what holds itself is not plain.
_DEPTH = 8


class Parcel(NamedTuple):
    """What one environment takes along.

    Attributes:
        attributes: See :func:`take_along`.
        generators: See :func:`global_generators` and :func:`generators_to_come`; None for most.
        options: Of its last explicit reset.
        resets: How many automatic ones there were since.
        ended: Whether the next step has to reset it.
        seed: See ``NanGuard.seeds``.
    """

    attributes: dict[str, bytes]
    generators: tuple[Any, Any] | None
    options: Any
    resets: int
    ended: bool
    seed: Any


def take_along(env: Any) -> dict[str, bytes]:
    """What the successor of an environment needs: by the path to each layer, some of its attributes, pickled."""
    return {path: _pickled(path, _of_layer(layer, is_inner=is_inner)) for path, layer, is_inner in _layers(env)}


def take_over(env: Any, parcels: dict[str, bytes]) -> None:
    """Give an environment what one from the same factory took along."""
    layers = {path: layer for path, layer, _ in _layers(env)}
    for path, data in parcels.items():
        if path not in layers:
            _complain(f"an environment has nothing at {path!r} yet, and begins there anew")
            continue
        for name, value in pickle.loads(data).items():
            _put(layers[path], name, value)


def global_generators() -> tuple[Any, Any]:
    """The state of ``random`` and ``np.random``."""
    return random.getstate(), np.random.get_state()


def generators_to_come() -> tuple[Any, Any]:
    """States that follow from those of ``random`` and ``np.random``, and that these do not come to."""
    digest = hashlib.sha256(pickle.dumps(global_generators())).digest()
    other = np.random.RandomState(np.frombuffer(digest, np.uint32))
    return random.Random(digest).getstate(), other.get_state()


def restore_global_generators(state: tuple[Any, Any]) -> None:
    """Go on from the state of another process."""
    random.setstate(state[0])
    np.random.set_state(state[1])


def _layers(env: Any) -> Iterator[tuple[str, Any, bool]]:
    """Each wrapper, outermost first, and the environment: path, object, whether it is innermost."""
    path, seen = "", []
    while True:
        seen.append(env)
        attributes = getattr(env, "__dict__", {})
        inner = [
            (name, value)
            for name, value in attributes.items()
            if callable(getattr(type(value), "step", None)) and callable(getattr(type(value), "reset", None))
        ]
        inner = [(name, value) for name, value in inner if not any(value is other for other in seen)]
        yield path, env, not inner
        if not inner:
            return
        # Where there are several, Gymnasium's own name for it.
        name, env = min(inner, key=lambda item: item[0] != "env")
        path += f".{name}"


def _of_layer(layer: Any, *, is_inner: bool) -> dict[str, Any]:
    attributes = getattr(layer, "__dict__", {})
    if is_inner:
        found = {name: attributes[name] for name in _GENERATORS if attributes.get(name) is not None}
    else:
        found = {name: value for name, value in attributes.items() if name not in _SPACES and _is_plain(value)}
    for name in _SPACES:
        generators = [space._np_random for space in _spaces(attributes.get(name))]
        if any(generator is not None for generator in generators):
            found[name] = generators
    return found


def _pickled(path: str, attributes: dict[str, Any]) -> bytes:
    try:
        return dumps(attributes)  # together, as they may refer to each other
    except Exception:
        good = {}
        for name, value in attributes.items():
            try:
                dumps(value)
            except Exception as error:
                _complain(f"{path}.{name} of an environment cannot be pickled, and begins anew: {error}")
            else:
                good[name] = value
        return dumps(good)


def _put(layer: Any, name: str, value: Any) -> None:
    attributes = vars(layer)
    if name in _SPACES:
        for space, generator in zip(_spaces(attributes.get(name)), value, strict=False):
            space._np_random = generator
        return
    old = attributes.get(name)
    if (
        type(old) is np.ndarray
        and isinstance(value, np.ndarray)
        and old.flags.writeable
        and (old.shape, old.dtype) == (value.shape, value.dtype)
    ):
        old[...] = value  # others may refer to it
    else:
        attributes[name] = value


def _spaces(space: Any) -> list[Any]:
    """A space and those that it is made of, in an order that depends on its kind only."""
    if not (hasattr(space, "_np_random") and hasattr(space, "sample")):
        return []
    found = [space]
    for value in vars(space).values():
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else [value]
        for part in parts:
            found += _spaces(part)
    return found


def _is_plain(value: Any, depth: int = _DEPTH) -> bool:
    if isinstance(value, np.ndarray):
        # Not one over a file, or over memory that is shared with others.
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return not value.dtype.hasobject and owner.base is None and not isinstance(owner, np.memmap)
    if isinstance(value, (*_SCALARS, *_RANDOM)):
        return True
    if not depth:
        return False
    if isinstance(value, Mapping):
        return all(_is_plain(key, depth - 1) and _is_plain(item, depth - 1) for key, item in value.items())
    if isinstance(value, _CONTAINERS):
        return all(_is_plain(item, depth - 1) for item in value)
    # The running statistics that normalizations keep, in Gymnasium and elsewhere.
    attributes = getattr(value, "__dict__", {})
    return attributes.keys() >= {"mean", "var", "count"} and all(map(_is_plain, attributes.values()))


def _complain(what: str) -> None:
    warnings.warn(f"while another worker takes over: {what}", RuntimeWarning, stacklevel=2)
