"""What a face asks of an engine, and where in its life an engine is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["PENDING", "Call", "CallOutcome", "EngineState", "Reset"]


class EngineState(Enum):
    """See the table in :mod:`fastvec._core.engine`."""

    IDLE = "idle"
    RESETTING = "reset"
    STEPPING = "step"
    CALLING = "call"
    SENDING = "send"
    BROKEN = "broken"
    CLOSED = "closed"
    FOREIGN = "foreign"


#: Something has been sent and not yet received.
PENDING = frozenset({EngineState.RESETTING, EngineState.STEPPING, EngineState.CALLING, EngineState.SENDING})


class Reset(NamedTuple):
    """Keyword arguments for each environment, and a mask of those to reset, or None for all."""

    arguments: Sequence[Mapping[str, Any]]
    mask: NDArray[np.bool_] | None


class Call(NamedTuple):
    """``function(env, *args, *each[i], **kwargs)`` for the i-th of ``env_ids``."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    env_ids: list[int]
    each: list[tuple[Any, ...]] | None
    lasting: bool = False


class CallOutcome(NamedTuple):
    """What a call returned, in the order of its ``env_ids``, or what an environment raised in it."""

    results: list[Any]
    failure: BaseException | None
