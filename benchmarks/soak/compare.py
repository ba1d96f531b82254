"""Whether two results are the same: values bit for bit, types, dtypes, shapes, order of keys. NaN equals NaN."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np

from fastvec import errors


class Like(str):
    """An expected text that is a pattern, as it has process ids in it."""


def difference(found: Any, expected: Any, path: str = "result") -> str | None:
    """In words, how what came back is not what was expected, and where; None where it is."""
    if type(expected) is Like:
        matches = type(found) is str and re.search(expected, found)
        return None if matches else f"{path}: got {found!r}, expected a match of {expected!r}"
    if type(found) is not type(expected):
        return f"{path}: got {_shown(found)}, expected {_shown(expected)}"
    if isinstance(expected, dict):
        if not _same_keys(list(found), list(expected)):
            return f"{path}: got the keys {list(found)}, expected {list(expected)}"
        pairs = ((f"{path}[{key!r}]", found[key], expected[key]) for key in expected)
        return _first(pairs)
    if isinstance(expected, (tuple, list)):
        if len(found) != len(expected):
            return f"{path}: got {len(found)} elements, expected {len(expected)}"
        return _first((f"{path}[{i}]", *pair) for i, pair in enumerate(zip(found, expected, strict=True)))
    if isinstance(expected, np.ndarray):
        return _array_difference(found, expected, path)
    if isinstance(expected, BaseException):
        return _error_difference(found, expected, path)
    return None if _bits(found) == _bits(expected) else f"{path}: got {_shown(found)}, expected {_shown(expected)}"


def _first(pairs: Any) -> str | None:
    for path, found, expected in pairs:
        said = difference(found, expected, path)
        if said is not None:
            return said
    return None


def _same_keys(found: list[Any], expected: list[Any]) -> bool:
    return found == expected and list(map(type, found)) == list(map(type, expected))


def _array_difference(found: Any, expected: Any, path: str) -> str | None:
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{path}: got {found.dtype} {found.shape}, expected {expected.dtype} {expected.shape}"
    if expected.dtype == object:
        return _first((f"{path}[{i}]", *pair) for i, pair in enumerate(zip(found.flat, expected.flat, strict=True)))
    if found.tobytes() == expected.tobytes():
        return None
    bits = [_bits(one) == _bits(other) for one, other in zip(found.flat, expected.flat, strict=True)]
    wrong = np.flatnonzero(~np.array(bits, bool))
    if not len(wrong):
        return None
    first = int(wrong[0])
    return (
        f"{path}: {len(wrong)} of {len(bits)} elements differ, the first at {first} ({expected.shape}): got "
        f"{found.flat[first]!r}, expected {expected.flat[first]!r}"
    )


def _error_difference(found: Any, expected: Any, path: str) -> str | None:
    """Type and text; where an environment is to blame, which. Process ids and tracebacks may differ."""
    if isinstance(expected, errors.EnvError):
        same = (found.env_index, found.command) == (expected.env_index, expected.command)
        return None if same else f"{path}: got {found}, expected {expected}"
    if str(found) != str(expected):
        return f"{path}: got {found!r}, expected {expected!r}"
    if isinstance(expected.__cause__, errors.EnvError):
        return difference(found.__cause__, expected.__cause__, f"{path}.__cause__")
    return None


def _bits(value: Any) -> Any:
    if isinstance(value, complex) and not isinstance(value, np.generic):
        return _bits(value.real), _bits(value.imag)
    if isinstance(value, (float, np.floating)):
        if value != value:
            return "nan"
        return struct.pack("d", value)
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text[:200]}{'…' if len(text) > 200 else ''} of type {type(value).__name__}"
