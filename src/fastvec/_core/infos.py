"""Infos without pickles: numbers that come back under the same keys become columns.

An :class:`InfoSchema` says how the numeric part of one kind of info dict lies in a row of
eight-byte cells. The writer, beside the environments, learns a schema from the first info of each
kind and announces it once; from then on an info costs one ``struct.pack_into``. Whatever is no
number of a known type (strings, ``episode``, ``None``) stays behind as a *rest*, which travels as
a pickle. Keys, their order, values and types come back as they went.

In the shared block, ``info_codes[env]`` is 0 for ``{}``, the number of the schema for a row of
cells, or WHOLE where the rest is all there is.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastvec.errors import InfoError

__all__ = ["Freeze", "InfoReader", "InfoSchema", "InfoWriter", "Rest"]

EMPTY = 0
WHOLE = -1

#: Kinds of info dicts to learn for one worker; keys that change at every step must not fill the memory.
MAX_SCHEMAS = 64

# One cell a scalar. Fractions go as a double, which holds every narrower one exactly.
_CELL_FORMATS: dict[type, str] = {float: "d", int: "q", bool: "?7x", np.bool_: "?7x", np.uint64: "Q", np.ulonglong: "Q"}
_CELL_FORMATS |= dict.fromkeys((np.float16, np.float32, np.float64), "d")
_CELL_FORMATS |= dict.fromkeys((np.int8, np.int16, np.int32, np.int64, np.longlong), "q")
_CELL_FORMATS |= dict.fromkeys((np.uint8, np.uint16, np.uint32), "q")

#: Takes a copy of an object that the environment can no longer change.
Freeze = Callable[[Any], Any]


class Rest(NamedTuple):
    """What the cells do not hold of one info.

    Attributes:
        items: The remaining keys and values.
        order: All keys in their order, or None where the remaining ones simply follow the columns.
    """

    items: dict[Any, Any]
    order: tuple[Any, ...] | None


class Column(NamedTuple):
    """One key of a schema: a scalar (``shape is None``) of a type, or an array of a dtype."""

    key: Any
    kind: Any
    shape: tuple[int, ...] | None
    cell: int


class InfoSchema:
    """How the numeric part of one kind of info dict lies in a row of cells.

    Args:
        number: What ``info_codes`` holds for it, from 1.
        signature: Key, type (or dtype) and shape of each column, in the order of the dict.
    """

    def __init__(self, number: int, signature: tuple[tuple[Any, Any, tuple[int, ...] | None], ...]) -> None:
        self.number = number
        self.signature = signature
        self.keys = tuple(key for key, _, _ in signature)
        self.types = tuple(kind if shape is None else np.ndarray for _, kind, shape in signature)
        #: Otherwise equality is not enough to know a key: 1, 1.0 and True are equal.
        self.has_text_keys = all(type(key) is str for key in self.keys)
        columns = []
        cell = 0
        for key, kind, shape in signature:
            columns.append(Column(key, kind, shape, cell))
            cell += _cells(kind, shape)
        self.columns = tuple(columns)
        self.cells = cell
        #: Whether the dtypes of arrays say all of the types; numpy.bool_ and bool have one dtype.
        self.has_own_dtypes = all(kind is not np.bool_ for _, kind, _ in signature)
        self.arrays = tuple(c for c in columns if c.shape is not None)
        self.struct = struct.Struct(
            "="
            + "".join(_CELL_FORMATS[c.kind] if c.shape is None else f"{8 * _cells(c.kind, c.shape)}x" for c in columns)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return InfoSchema, (self.number, self.signature)

    def fits(self, info: dict[Any, Any]) -> bool:
        """Whether the arrays of an info with this schema's keys and types have its shapes and dtypes."""
        return all(info[c.key].shape == c.shape and info[c.key].dtype == c.kind for c in self.arrays)

    def scalars(self, info: dict[Any, Any]) -> list[Any]:
        """The values that are no arrays, in order."""
        return [info[c.key] for c in self.columns if c.shape is None]

    def decode(self, cells: NDArray[np.float64]) -> list[dict[Any, Any]]:
        """Rebuild the dicts of some rows of cells ``(k, INFO_CELLS) float64``; nothing in them aliases the cells."""
        if not self.columns:
            return [{} for _ in range(len(cells))]
        keys = self.keys
        values = [_decode_column(cells, column) for column in self.columns]
        return [dict(zip(keys, row, strict=False)) for row in zip(*values, strict=False)]

    def arrays_by_key(self, cells: NDArray[np.float64]) -> dict[Any, NDArray[Any]]:
        """The columns of some rows of cells, each a fresh ``(k, *shape)`` array of its type."""
        return {column.key: _array_of(cells, column) for column in self.columns}


def _cells(kind: Any, shape: tuple[int, ...] | None) -> int:
    if shape is None:
        return 1
    nbytes = math.prod(shape) * int(np.dtype(kind).itemsize)
    return -(-nbytes // 8)


def _decode_column(cells: NDArray[np.float64], column: Column) -> list[Any]:
    values = _array_of(cells, column)
    if column.shape is not None:
        return [values[row, ...].copy() for row in range(len(values))]
    return values.tolist() if column.kind in (float, int, bool) else list(values)


def _array_of(cells: NDArray[np.float64], column: Column) -> NDArray[Any]:
    kind, shape = column.kind, column.shape
    if shape is not None:
        width = _cells(kind, shape)
        rows = np.ascontiguousarray(cells[:, column.cell : column.cell + width]).view(np.uint8)
        nbytes = math.prod(shape) * kind.itemsize
        flat = np.ascontiguousarray(rows[:, :nbytes]).view(kind)
        return np.array(flat.reshape(len(cells), *shape))
    raw: NDArray[Any] = cells[:, column.cell]
    if _CELL_FORMATS[kind] == "?7x":
        return np.not_equal(raw.view(np.int64), 0)
    if _CELL_FORMATS[kind] != "d":
        raw = raw.view(np.uint64 if _CELL_FORMATS[kind] == "Q" else np.int64)
    # Not np.array(), for which np.longlong is np.int64.
    numbers: NDArray[Any] = raw.astype(kind)
    return numbers


class InfoWriter:
    """Writes the infos of a slice of environments into their rows.

    Args:
        codes: ``(k,) int32``, the slice's part of ``info_codes``.
        cells: ``(k, INFO_CELLS) float64``, the slice's part of ``info_cells``.
        freeze: Copies what stays behind, before the environment can change it.
        of: What errors call the dicts.
    """

    def __init__(
        self, codes: NDArray[np.int32], cells: NDArray[np.float64], freeze: Freeze, *, of: str = "info"
    ) -> None:
        self._of = of
        self._codes = codes.data
        self._cells = cells
        self._bytes = cells.data.cast("B")
        self._row_bytes = cells.shape[1] * 8
        self._freeze = freeze
        self._last: list[InfoSchema | None] = [None] * len(codes)
        self._known: dict[Any, InfoSchema] = {}
        self._new: list[InfoSchema] = []

    def take_new(self) -> list[InfoSchema]:
        """The schemas learned since the last call, to be announced to the reader before their rows are read."""
        new, self._new = self._new, []
        return new

    def write(self, row: int, info: dict[Any, Any]) -> Any:
        """Store one info.

        Returns:
            The frozen :class:`Rest`, or None where the row holds all of it.

        Raises:
            InfoError: The info is no dict, or a value in it cannot be copied.
        """
        if type(info) is dict and not info:
            self._codes[row] = EMPTY
            return None
        schema = self._last[row]
        if (
            type(info) is dict
            and schema is not None
            and schema.has_text_keys
            and schema.keys == tuple(info)
            and schema.types == tuple(map(type, info.values()))
            and schema.fits(info)
            and self._pack(row, schema, info.values() if not schema.arrays else schema.scalars(info), info)
        ):
            return None
        return self._write_slowly(row, info)

    def _write_slowly(self, row: int, info: dict[Any, Any]) -> Any:
        if not isinstance(info, dict):
            raise InfoError(f"an info must be a dict, got {info!r} of type {type(info).__name__}")
        schema = self._schema_for(info) if type(info) is dict else None
        if schema is None or not self._pack(row, schema, schema.scalars(info), info):
            return self._write_whole(row, info)
        self._last[row] = schema
        if len(schema.keys) == len(info):
            return None
        columns = set(schema.keys)
        rest = {key: value for key, value in info.items() if key not in columns}
        order = tuple(info)
        return self._frozen(Rest(rest, None if order == (*schema.keys, *rest) else order))

    def _pack(self, row: int, schema: InfoSchema, scalars: Iterable[Any], info: dict[Any, Any]) -> bool:
        start = row * self._row_bytes
        try:
            schema.struct.pack_into(self._bytes, start, *scalars)
        except struct.error:  # an int beyond 64 bits
            return False
        for column in schema.arrays:
            data = info[column.key].tobytes()
            at = start + 8 * column.cell
            self._bytes[at : at + len(data)] = data
        self._codes[row] = schema.number
        return True

    def _write_whole(self, row: int, info: dict[Any, Any]) -> Any:
        self._codes[row] = WHOLE
        return self._frozen(Rest(info, None))

    def _schema_for(self, info: dict[Any, Any]) -> InfoSchema | None:
        budget = self._row_bytes // 8
        signature: list[tuple[Any, Any, tuple[int, ...] | None]] = []
        for key, value in info.items():
            if type(key) not in (str, int):
                continue
            kind: Any = type(value)
            shape = None
            if kind is np.ndarray:
                # Byte order and alignment are part of the dtype, flags are not: an info's array comes back C-ordered.
                if value.dtype.kind not in "?biufc" or value.size == 0:
                    continue
                kind, shape = value.dtype, value.shape
            elif kind not in _CELL_FORMATS:
                continue
            cells = _cells(kind, shape)
            if cells <= budget:
                budget -= cells
                signature.append((key, kind, shape))
        if not signature:
            return None
        # With the types of the keys, as 1, 1.0 and True are equal.
        identity = (tuple(signature), tuple(type(key) for key, _, _ in signature))
        known = self._known.get(identity)
        if known is None and len(self._known) < MAX_SCHEMAS:
            known = InfoSchema(len(self._known) + 1, tuple(signature))
            self._known[identity] = known
            self._new.append(known)
        return known

    def _frozen(self, rest: Rest) -> Any:
        try:
            return self._freeze(rest)
        except Exception as error:
            for key, value in rest.items.items():
                try:
                    self._freeze(value)
                except Exception:
                    raise InfoError(
                        f"{self._of}[{key!r}] cannot be sent to the parent process: a {type(value).__name__} "
                        f"cannot be pickled ({error})"
                    ) from error
            raise


class InfoReader:
    """Rebuilds the infos of a slice of environments from their rows.

    Args:
        codes: ``(k,) int32``, the slice's part of ``info_codes``.
        cells: ``(k, INFO_CELLS) float64``, the slice's part of ``info_cells``.
        thaw: Undoes the writer's ``freeze``.
    """

    def __init__(self, codes: NDArray[np.int32], cells: NDArray[np.float64], thaw: Callable[[Any], Any]) -> None:
        self._codes = codes
        self._cells = cells
        self._thaw = thaw
        self._schemas: dict[int, InfoSchema] = {}

    def learn(self, schemas: Sequence[InfoSchema]) -> None:
        """Take note of schemas that the writer announced."""
        self._schemas.update((schema.number, schema) for schema in schemas)

    def read(self, rests: dict[int, Any], rows: Collection[int] | None = None) -> list[dict[Any, Any]]:
        """All infos of the slice, fresh, or those of some rows.

        Args:
            rests: Frozen rests by row.
            rows: Those that this reader's writer has written, where another has written the rest.
        """
        codes = self._codes.tolist()
        if rows is not None:
            infos = self._read([code if row in rows else EMPTY for row, code in enumerate(codes)], rests)
            return [info for row, info in enumerate(infos) if row in rows]
        return self._read(codes, rests)

    def uniform(self) -> InfoSchema | None:
        """The schema of all rows, if it is one."""
        codes = set(self._codes.tolist())
        return self._schemas.get(codes.pop()) if len(codes) == 1 else None

    def _read(self, codes: list[int], rests: dict[int, Any]) -> list[dict[Any, Any]]:
        first = codes[0]
        if first >= 0 and codes.count(first) == len(codes):
            infos = self._decode(first, self._cells)
        else:
            infos = [{} for _ in codes]
            for code in {code for code in codes if code > 0}:
                rows = [row for row, other in enumerate(codes) if other == code]
                for row, info in zip(rows, self._decode(code, self._cells[rows]), strict=True):
                    infos[row] = info
        for row, frozen in rests.items():
            rest = self._thaw(frozen)
            if codes[row] == WHOLE:  # a subclass of dict is still one
                infos[row] = rest.items
                continue
            infos[row].update(rest.items)
            if rest.order is not None:
                infos[row] = {key: infos[row][key] for key in rest.order}
        return infos

    def _decode(self, code: int, cells: NDArray[np.float64]) -> list[dict[Any, Any]]:
        if code == EMPTY:
            return [{} for _ in range(len(cells))]
        return self._schemas[code].decode(cells)
