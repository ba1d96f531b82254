"""The names and types of the options that all faces have in common."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict

__all__ = ["CpuAffinity", "EngineOptions", "WorkerEnv", "check_options"]

CpuAffinity: TypeAlias = "Literal['auto'] | Sequence[int] | Sequence[Collection[int]] | None"
WorkerEnv: TypeAlias = "Mapping[str, str] | Callable[[int], Mapping[str, str]] | None"


class EngineOptions(TypedDict, total=False):
    """The options that every face has; what they mean is said in the faces' docstrings."""

    in_series: int | None
    num_workers: int | None
    start_method: str | None
    cpu_affinity: CpuAffinity
    pin_learner: bool
    threads_per_worker: int | None
    start_timeout: float | None
    reset_timeout: float | None
    step_timeout: float | None
    close_timeout: float
    worker_env: WorkerEnv
    preload: Sequence[str]
    unsafe_casts: bool


def check_options(name: str, options: EngineOptions) -> EngineOptions:
    """The options again, if there are none among them that nobody knows.

    Raises:
        TypeError: As Python raises for an unexpected keyword argument of ``name``.
    """
    for option in options:
        if option not in EngineOptions.__annotations__:
            close = difflib.get_close_matches(option, EngineOptions.__annotations__, n=1)
            hint = (
                f": did you mean {close[0]!r}?" if close else f": expected {', '.join(EngineOptions.__annotations__)}"
            )
            raise TypeError(f"{name}() got an unexpected keyword argument {option!r}{hint}")
    return options
