"""The names and types of the options that all faces have in common."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

__all__ = ["CpuAffinity", "EngineOptions", "ResetOptions", "WorkerEnv", "check_options"]

CpuAffinity: TypeAlias = "Literal['auto'] | Sequence[int] | Sequence[Collection[int]] | None"
ResetOptions: TypeAlias = "Literal['keep'] | Callable[[int, int], Mapping[str, Any] | None] | None"
WorkerEnv: TypeAlias = "Mapping[str, str] | Callable[[int], Mapping[str, str]] | None"


class EngineOptions(TypedDict, total=False):
    """The options that every face passes on to the engine; what they mean is said in the faces' docstrings."""

    num_workers: int | None
    cpu_affinity: CpuAffinity
    pin_learner: bool
    threads_per_worker: int | None
    start_timeout: float | None
    reset_timeout: float | None
    step_timeout: float | None
    close_timeout: float
    watchdog: float | None
    on_failure: Literal["raise", "restart"]
    max_restarts: int
    restart_window: float
    max_episodes_per_worker: int | None
    max_worker_rss: float | None
    worker_env: WorkerEnv
    worker_output: Literal["inherit", "prefix"]
    preload: Sequence[str]
    unsafe_casts: bool
    check_nan: bool
    reset_options: ResetOptions
    spare_resets: int


def check_options(face: type, options: EngineOptions) -> EngineOptions:
    """The options again, if ``face`` has all of them.

    Raises:
        TypeError: As Python raises for an unexpected keyword argument.
    """
    for option in options:
        if option not in EngineOptions.__annotations__:
            known = [*EngineOptions.__annotations__, *inspect.signature(face).parameters]
            close = difflib.get_close_matches(option, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known[:-1])}"
            raise TypeError(f"{face.__name__}() got an unexpected keyword argument {option!r}: {hint}")
    return options
