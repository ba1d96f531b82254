"""Pickles to a worker and back, whatever the program has defined in its ``__main__``, which workers do not import."""

from __future__ import annotations

import functools
import io
import operator
import pickle
import sys
from types import FunctionType
from typing import Any

import cloudpickle

__all__ = ["dumps", "dumps_home", "freeze"]


#: Bytes from which on an array goes beside a pickle: below, the calls of the system cost more than the copies.
LARGE = 1 << 17


def dumps(value: Any, *, same_main: bool = False, beside: list[memoryview] | None = None) -> bytes:
    """Pickle for a worker; by value what is defined in ``__main__``, which workers do not import.

    Args:
        value: What to send.
        same_main: Whether the receiver was forked from this process, and has its ``__main__``.
        beside: Where to put the bytes of large arrays, in order, which are then not in the pickle.
    """
    callback = None if beside is None else functools.partial(_put_beside, beside)
    try:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=callback)
        if same_main or b"__main__" not in data:
            return data
    except Exception:
        pass
    if beside:
        beside.clear()
    return cloudpickle.dumps(value, buffer_callback=callback)  # type: ignore[no-any-return]


def _put_beside(beside: list[memoryview], buffer: pickle.PickleBuffer) -> bool:
    view = buffer.raw()
    if view.nbytes < LARGE:
        return True  # into the pickle
    beside.append(view)
    return False


def dumps_home(value: Any) -> bytes:
    """Pickle for the program that this worker belongs to; by reference what that has defined in ``__main__``.

    By value the program would get other classes than its own, or its own with the worker's attributes put over them.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        buffer = io.BytesIO()
        _HomePickler(buffer).dump(value)
        return buffer.getvalue()


class _HomePickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if (
            isinstance(obj, (type, FunctionType))
            and obj.__module__ == "__main__"
            and "<" not in obj.__qualname__  # neither <locals> nor <lambda>
        ):
            return _from_main, (obj.__qualname__,)
        return super().reducer_override(obj)


def _from_main(qualname: str) -> Any:
    return operator.attrgetter(qualname)(sys.modules["__main__"])


def freeze(value: Any) -> bytes:
    """The ``Freeze`` of a worker: a pickle is both the copy and what is sent."""
    return dumps_home(value)
