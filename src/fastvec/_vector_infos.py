"""Infos of many environments as one dict of arrays, in the format of Gymnasium's vector environments.

Each key has an array with a row an environment, and under ``_key`` a mask of the environments that
have it. The type of an array follows from all of its values, not from the first one alone: where
Gymnasium would cut 1.5 to 1, the array is one of floats, and where no numeric dtype holds every
value exactly it is one of objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["vectorize_infos"]

_NUMBERS = (int, float)


def vectorize_infos(infos: Iterable[tuple[int, dict[Any, Any]]], num_envs: int) -> dict[Any, Any]:
    """A dict of arrays from the dicts of single environments.

    Args:
        infos: Environments in ascending order with what they have to say; one may come twice, its later values win.
        num_envs: How many environments there are.

    Returns:
        For each key an array ``(num_envs, ...)``, or a dict of such where the values are dicts, with zeros (or None)
        for environments that do not have it, and ``_key``, a ``(num_envs,) bool`` mask of those that do.
    """
    gathered: dict[Any, dict[int, Any]] = {}
    for index, info in infos:
        for key, value in info.items():
            try:
                gathered[key][index] = value
            except KeyError:
                gathered[key] = {index: value}
    vectorized: dict[Any, Any] = {}
    for key, values in gathered.items():
        mask = np.zeros(num_envs, np.bool_)
        rows = list(values)
        mask[rows] = True
        if key == "final_obs":
            vectorized[key] = _objects(values, num_envs)
        elif all(isinstance(value, dict) for value in values.values()):
            vectorized[key] = vectorize_infos(values.items(), num_envs)
        else:
            vectorized[key] = _array(values, rows, num_envs)
        vectorized[f"_{key}"] = mask
    return vectorized


def _array(values: dict[int, Any], rows: list[int], num_envs: int) -> NDArray[Any]:
    listed = list(values.values())
    kinds = set(map(type, listed))
    dtype: Any = None
    shape: tuple[int, ...] = ()
    if len(kinds) == 1:
        (kind,) = kinds
        if kind in (int, float, bool) or issubclass(kind, np.number):
            dtype = np.dtype(kind)
        elif kind is np.ndarray:
            shape = listed[0].shape
            dtypes = {value.dtype for value in listed}
            if all(value.shape == shape for value in listed):
                dtype = dtypes.pop() if len(dtypes) == 1 else _common(dtypes)
    elif kinds == {bool, np.bool_}:
        dtype = np.dtype(bool)
    elif all(kind in _NUMBERS or issubclass(kind, np.number) for kind in kinds):
        dtype = _common({np.dtype(kind) for kind in kinds})
    if dtype is None:
        return _objects(values, num_envs)
    array = np.zeros((num_envs, *shape), dtype)
    try:
        if dtype.kind == "O":  # a list of such arrays would be taken for one more level
            for row, value in values.items():
                array[row] = value
        elif len(rows) == num_envs:
            array[:] = listed
        else:
            array[rows] = listed
    except OverflowError:  # an int beyond 64 bits
        return _objects(values, num_envs)
    if len(kinds) > 1 and not all(_equal(_plain(array[row]), _plain(value)) for row, value in values.items()):
        return _objects(values, num_envs)
    return array


def _plain(number: Any) -> Any:
    """A Python number, which compares an int with a float exactly."""
    return number.item() if isinstance(number, np.generic) else number


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))


def _common(dtypes: set[np.dtype[Any]]) -> np.dtype[Any] | None:
    """A numeric dtype for all, where none of them is bool."""
    if any(dtype.kind not in "iufc" for dtype in dtypes):
        return None
    return np.result_type(*dtypes)


def _objects(values: dict[int, Any], num_envs: int) -> NDArray[Any]:
    array = np.full(num_envs, None, dtype=object)
    for row, value in values.items():
        array[row] = value
    return array
