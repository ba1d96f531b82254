"""Which start method: never the interpreter's own default, which changed under users, and never ``fork`` unasked."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import warnings

from fastvec.errors import ConfigError

__all__ = ["resolve_start_method"]


def resolve_start_method(start_method: str | None, context: str | None, num_workers: int) -> str:
    """The start method from its two names.

    Raises:
        ConfigError: They disagree, there is none of that name, or it cannot be used in this process.
    """
    if start_method is not None and context is not None and start_method != context:
        raise ConfigError(
            f"start_method={start_method!r} and context={context!r} are two names of one option: give one of them"
        )
    method = start_method or context
    available = multiprocessing.get_all_start_methods()
    if method is None:
        method = "forkserver" if "forkserver" in available else "spawn"
    if method not in available:
        raise ConfigError(f"cannot find context for {method!r}: expected one of {', '.join(map(repr, available))}")
    if method == "fork" and num_workers:
        _check_fork()
    return method


def _check_fork() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise ConfigError(
            "start_method='fork' cannot be used here: CUDA is initialised in this process and does not survive a "
            "fork. Use start_method='forkserver', or build the environments before touching the GPU"
        )
    others = [t.name for t in threading.enumerate() if t is not threading.current_thread()]
    if others:
        warnings.warn(
            f"start_method='fork' while {len(others)} other Python threads are running ({', '.join(others[:3])}): "
            "a lock that one of them holds stays locked for ever in the workers. start_method='forkserver' avoids it",
            RuntimeWarning,
            stacklevel=5,
        )
