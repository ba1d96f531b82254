"""Writing observations into their rows, with every check that makes a wrong one an error.

The check of the common case, an array of exactly the declared dtype and shape, costs two
comparisons. What does not fit goes the slow way: it is cast as NumPy assignment would, but only
if no value is lost by it (narrower floats aside, said once), and never broadcast.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastvec._core.structure import ArraySpec, Leaf, Node, Path, leaves, lookup, path_text
from fastvec.errors import ObservationError

__all__ = ["ObservationWriter"]


class ObservationWriter:
    """Writes the observations of a slice of environments into arrays.

    Args:
        tree: What an observation looks like.
        arrays: One ``(k, *shape)`` array a leaf, None for leaves that travel as objects.
        unsafe_casts: Whether a cast may lose values, as plain NumPy assignment does.
    """

    def __init__(self, tree: Node, arrays: list[NDArray[Any] | None], *, unsafe_casts: bool) -> None:
        self._tree = tree
        self._leaves = list(leaves(tree))
        self.unsafe_casts = unsafe_casts
        self._warned: set[Path] = set()
        self._rows = _rows_of(arrays)
        self.objects: dict[tuple[int, int], Any] = {}

    def twin(self, arrays: list[NDArray[Any] | None]) -> ObservationWriter:
        """A writer into other arrays of the same environments: ``objects`` of both are one."""
        other = copy.copy(self)
        other._rows = _rows_of(arrays)
        return other

    def writer(self) -> Callable[[int, Any], None]:
        """The fastest function ``write(row, observation)`` for this tree."""
        if not isinstance(self._tree, Leaf) or self._tree.spec is None:
            return self._write_tree
        rows, spec = self._rows[0], self._tree.spec
        assert rows is not None
        shape, dtype, slow, ndarray = spec.shape, spec.dtype, self._write_leaf, np.ndarray

        def write(row: int, observation: Any) -> None:
            if type(observation) is ndarray and observation.dtype == dtype and observation.shape == shape:
                rows[row][...] = observation
            else:
                slow(0, row, observation)

        return write

    def forget(self, row: int) -> None:
        """Take back what was written last of a row that travels as objects."""
        for key in [key for key in self.objects if key[1] == row]:
            del self.objects[key]

    def exact(self, observation: Any) -> bool:
        """Whether the arrays can hold this observation with its very types: plain arrays of the declared dtypes."""
        values = list(lookup(observation, self._tree, "observation"))
        return self._plain_containers(observation, self._tree) and all(
            leaf.spec is not None
            and type(value) is np.ndarray
            and value.dtype == leaf.spec.dtype
            and value.shape == leaf.spec.shape
            for leaf, value in zip(self._leaves, values, strict=True)
        )

    def _plain_containers(self, value: Any, node: Node) -> bool:
        if isinstance(node, Leaf):
            return True
        keys = getattr(node, "keys", None)
        if keys is None:
            return type(value) is tuple and all(map(self._plain_containers, value, node.children))
        return (
            type(value) is dict
            and tuple(value) == keys
            and all(map(self._plain_containers, value.values(), node.children))
        )

    def _values(self, observation: Any) -> Iterator[Any]:
        return lookup(observation, self._tree, "the observation")

    def _write_tree(self, row: int, observation: Any) -> None:
        for index, value in enumerate(self._values(observation)):
            rows = self._rows[index]
            if rows is None:
                self.objects[index, row] = value
                continue
            spec = self._leaves[index].spec
            assert spec is not None
            if type(value) is np.ndarray and value.dtype == spec.dtype and value.shape == spec.shape:
                rows[row][...] = value
            else:
                self._write_leaf(index, row, value)

    def _write_leaf(self, index: int, row: int, value: Any) -> None:
        leaf, rows = self._leaves[index], self._rows[index]
        assert leaf.spec is not None
        assert rows is not None
        rows[row][...] = self._fitted(leaf, leaf.spec, value)

    def _fitted(self, leaf: Leaf, spec: ArraySpec, value: Any) -> NDArray[Any]:
        name = f"the {path_text(leaf.path)}"
        try:
            array = np.asarray(value)
        except Exception as error:
            raise ObservationError(f"{name} cannot be made an array: {error}") from error
        if array.shape != spec.shape:
            raise ObservationError(f"{name} must have shape {spec.shape}, got {array.shape}")
        if array.dtype == spec.dtype or (self.unsafe_casts and array.dtype.kind in "?biuf"):
            return array.astype(spec.dtype)
        if array.dtype.kind not in "?biufc" or not _same_kind(array.dtype, spec.dtype):
            raise ObservationError(
                f"{name} must have dtype {spec.dtype}, got {array.dtype} ({_sample(array)}): casting it would lose "
                "values. Return what the space declares, or pass unsafe_casts=True to cast it regardless"
            )
        cast = array.astype(spec.dtype)
        if array.dtype.kind in "iu":
            with np.errstate(invalid="ignore"):
                back = cast.astype(array.dtype)
            if not (np.array_equal(cast, array) and np.array_equal(back, array)):
                raise ObservationError(
                    f"{name} must have dtype {spec.dtype}, got {array.dtype} with values that do not fit "
                    f"({_sample(array[(cast != array) | (back != array)])})"
                )
        elif array.dtype.kind == "f" and array.dtype.itemsize > spec.dtype.itemsize:
            self._warn_once(leaf, f"{name} has dtype {array.dtype}, but its space declares {spec.dtype}: it is rounded")
        return cast

    def _warn_once(self, leaf: Leaf, message: str) -> None:
        if leaf.path not in self._warned:
            self._warned.add(leaf.path)
            warnings.warn(message, UserWarning, stacklevel=2)


def _rows_of(arrays: list[NDArray[Any] | None]) -> list[list[NDArray[Any]] | None]:
    """A view of each row, made once: indexing an array costs as much as copying a small row."""
    return [None if array is None else [array[row, ...] for row in range(len(array))] for array in arrays]


def _same_kind(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    if source.kind in "iu" and target.kind in "iu":
        return True  # decided by the values
    return np.can_cast(source, target, casting="same_kind")


def _sample(array: NDArray[Any]) -> str:
    return f"for example {array.flat[0]}" if array.size else "empty"
