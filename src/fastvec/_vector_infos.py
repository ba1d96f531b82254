"""Infos of many environments as one dict of arrays, in the format of Gymnasium's vector environments.

Each key has an array with a row an environment, and under ``_key`` a mask of the environments that
have it. The type of an array follows from all of its values, not from the first one alone: where
Gymnasium would cut 1.5 to 1, the array is one of floats, and where no numeric dtype holds every
value exactly it is one of objects.

Which keys are masks is decided from the shortest key on: ``_a`` is the mask of ``a``, if that is a key
and no mask itself. So a key of an environment may begin with an underscore.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastvec.errors import InfoError

__all__ = ["infos_to_dict", "infos_to_list", "vectorize_infos", "with_masks"]

_NUMBERS = (int, float)


def infos_to_list(infos: Mapping[Any, Any], num_envs: int) -> list[dict[Any, Any]]:
    """A dict for each environment, from infos in the format of Gymnasium's vector environments.

    The way back is :func:`infos_to_dict`. Unlike ``gymnasium.wrappers.vector.DictInfoToList`` it keeps keys that begin
    with an underscore and are no masks.

    Args:
        infos: Arrays (or what else has a row an environment), nested in dicts, with a mask ``_key`` for each ``key``. A
            key without a mask is one that every environment has.
        num_envs: How many environments there are.

    Returns:
        ``num_envs`` dicts. A number is a NumPy scalar of its array's dtype, a bool one of Python's, an array a row of
        the one in ``infos``, not a copy; what is in an array of objects is that object. What lies in rows outside of
        the masks is left out.

    Raises:
        InfoError: There is a value or a mask that has not a row for each environment.
    """
    listed: list[dict[Any, Any]] = [{} for _ in range(num_envs)]
    masks: set[str] = set()
    for key in sorted(infos, key=lambda key: len(str(key))):
        if key not in masks:
            masks.add(f"_{key}")
    for key, value in infos.items():
        if key in masks:
            continue
        rows = infos_to_list(value, num_envs) if isinstance(value, Mapping) else _rows(value, key, num_envs)
        mask = _rows(infos[f"_{key}"], f"_{key}", num_envs) if f"_{key}" in infos else [True] * num_envs
        for info, row, has_it in zip(listed, rows, mask, strict=True):
            if has_it:
                info[key] = row
    return listed


def infos_to_dict(infos: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Infos in the format of Gymnasium's vector environments, from a dict of each environment.

    ``infos_to_list(infos_to_dict(infos), len(infos))`` has the keys and values of ``infos``: numbers are exactly equal
    and bools stay bools. Types may differ: a number comes back as a NumPy scalar, an int beside a float of another
    environment as a float, an array of no dimensions as a scalar, a subclass of dict as a dict. So may the order of
    keys. Numbers for which there is no common dtype, and everything else, come back as the objects that they were.

    Args:
        infos: A dict for each environment, as Stable-Baselines3 has them. Left unchanged.

    Returns:
        As :func:`vectorize_infos`; values under ``final_obs`` are in an array of objects.

    Raises:
        InfoError: A key is what the mask of another one has to be called.
    """
    _check_keys(infos)
    return vectorize_infos(enumerate(map(dict, infos)), len(infos))


def _check_keys(infos: Iterable[Mapping[Any, Any]]) -> None:
    nested: dict[Any, list[Any]] = {}
    for info in infos:
        for key, value in info.items():
            nested.setdefault(key, []).append(value)
    owners: dict[Any, Any] = {}
    for key, values in nested.items():
        other = owners.setdefault(f"_{key}", key)
        if other is not key:
            raise InfoError(f"the infos have the keys {other!r} and {key!r}, whose masks would both be '_{key}'")
        if key != "final_obs" and all(isinstance(value, dict) for value in values):
            _check_keys(values)
    for key in nested:
        if key in owners:
            raise InfoError(f"the infos have the key {key!r}, which would be the mask of their key {owners[key]!r}")


def _rows(values: Any, key: Any, num_envs: int) -> Any:
    if isinstance(values, np.ndarray) and values.dtype == np.bool_ and values.ndim == 1:
        values = values.tolist()  # made of Python's bools: those of NumPy are in arrays of objects
    try:
        given = len(values)
    except TypeError:
        raise InfoError(
            f"infos[{key!r}] must have a row for each of {num_envs} environments, got a {type(values).__name__}"
        ) from None
    if given != num_envs:
        raise InfoError(f"infos[{key!r}] must have a row for each of {num_envs} environments, got {given}")
    return values


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


def with_masks(columns: Mapping[Any, NDArray[Any]], num_envs: int) -> dict[Any, Any]:
    """As :func:`vectorize_infos`, of arrays with a row for each environment, which become part of what is returned."""
    vectorized: dict[Any, Any] = {}
    for key, array in columns.items():
        vectorized[key] = _objects(dict(enumerate(array)), num_envs) if key == "final_obs" else array
        vectorized[f"_{key}"] = np.ones(num_envs, np.bool_)
    return vectorized


def _array(values: dict[int, Any], rows: list[int], num_envs: int) -> NDArray[Any]:
    listed = list(values.values())
    kinds = set(map(type, listed))
    dtype: Any = None
    shape: tuple[int, ...] = ()
    is_mixed = len(kinds) > 1
    if len(kinds) == 1:
        (kind,) = kinds
        if kind in (int, float, bool) or _is_number(kind):
            dtype = np.dtype(kind)
        elif kind is np.ndarray:
            shape = listed[0].shape
            dtypes = {value.dtype for value in listed}
            is_mixed = len(dtypes) > 1
            if all(value.shape == shape for value in listed):
                dtype = dtypes.pop() if len(dtypes) == 1 else _common(dtypes)
    elif kinds == {bool, np.bool_}:
        dtype = np.dtype(bool)
    elif all(kind in _NUMBERS or _is_number(kind) for kind in kinds):
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
    if is_mixed and not all(_equal(array[row], value) for row, value in values.items()):
        return _objects(values, num_envs)
    return array


def _is_number(kind: type) -> bool:
    # NumPy takes a time span for an integer, but an array of them needs the unit.
    return issubclass(kind, np.number) and not issubclass(kind, np.timedelta64)


def _plain(numbers: Any) -> list[Any]:
    """Python's numbers, which compare an int with a float exactly."""
    if isinstance(numbers, np.ndarray):
        return numbers.ravel().tolist()
    return [numbers.item() if isinstance(numbers, np.generic) else numbers]


def _equal(one: Any, other: Any) -> bool:
    return all(a == b or (a != a and b != b) for a, b in zip(_plain(one), _plain(other), strict=True))


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
