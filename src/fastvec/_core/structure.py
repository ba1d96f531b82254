"""Nested observations and actions as trees of arrays.

A tree has :class:`Leaf` nodes, each an array of fixed shape and dtype (or, with ``spec=None``, an
arbitrary object that travels as a pickle), under :class:`DictNode` and :class:`TupleNode`. The
faces translate their framework's spaces into such a tree; the engine sees nothing else of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fastvec.errors import ObservationError

__all__ = [
    "ArraySpec",
    "DictNode",
    "EnvDescription",
    "Leaf",
    "Node",
    "Path",
    "TupleNode",
    "build",
    "leaves",
    "lookup",
    "path_text",
]

Path: TypeAlias = "tuple[str | int, ...]"


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one array.

    Attributes:
        shape: Without the batch dimension; ``()`` for a scalar.
        dtype: NumPy dtype, never ``object``.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of one array."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class Leaf:
    """An array of a fixed shape and dtype, or (``spec=None``) any object."""

    spec: ArraySpec | None
    path: Path = ()


@dataclass(frozen=True)
class DictNode:
    """A mapping; ``keys`` is the order that batches come back in."""

    keys: tuple[str, ...]
    children: tuple[Node, ...]


@dataclass(frozen=True)
class TupleNode:
    """A tuple."""

    children: tuple[Node, ...]


Node: TypeAlias = "Leaf | DictNode | TupleNode"


@dataclass(frozen=True)
class EnvDescription:
    """What the environments of a worker declare.

    Attributes:
        observation: The tree of an observation.
        action: The tree of an action.
        spaces: The framework's own description (a pickle), for the face; the engine only carries it.
    """

    observation: Node
    action: Node
    spaces: bytes


def leaves(node: Node) -> Iterator[Leaf]:
    """The leaves of a tree, depth first: the order in which every list of leaf arrays is kept."""
    if isinstance(node, Leaf):
        yield node
    else:
        for child in node.children:
            yield from leaves(child)


def build(node: Node, values: Iterator[Any]) -> Any:
    """Assemble leaf values, taken in the order of :func:`leaves`, into plain dicts and tuples."""
    if isinstance(node, Leaf):
        return next(values)
    if isinstance(node, DictNode):
        return {key: build(child, values) for key, child in zip(node.keys, node.children, strict=True)}
    return tuple(build(child, values) for child in node.children)


def lookup(value: Any, node: Node, where: str) -> Iterator[Any]:
    """The leaf values of one observation, in the order of :func:`leaves`.

    Keys that the space does not declare are left out, as in the classes that fastvec replaces.

    Raises:
        ObservationError: A container is of another kind than declared, or a key or element is missing.
    """
    if isinstance(node, Leaf):
        yield value
    elif isinstance(node, DictNode):
        try:
            parts = [value[key] for key in node.keys]
        except (KeyError, TypeError, IndexError):
            got = f"the keys {list(value)}" if hasattr(value, "keys") else f"a {type(value).__name__}"
            raise ObservationError(f"{where} must be a dict with the keys {list(node.keys)}, got {got}") from None
        for key, part, child in zip(node.keys, parts, node.children, strict=True):
            yield from lookup(part, child, f"{where}[{key!r}]")
    else:
        if not isinstance(value, Sequence) or len(value) != len(node.children):
            got = f"{len(value)} elements" if isinstance(value, Sequence) else f"a {type(value).__name__}"
            raise ObservationError(f"{where} must be a tuple of {len(node.children)} elements, got {got}")
        for index, (part, child) in enumerate(zip(value, node.children, strict=True)):
            yield from lookup(part, child, f"{where}[{index}]")


def path_text(path: Path, name: str = "observation") -> str:
    """How a leaf is called in an error: ``observation['camera'][0]``."""
    return name + "".join(f"[{key!r}]" for key in path)
