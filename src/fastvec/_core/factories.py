"""Environment factories on their way to another process.

Checks that they are factories, pickles them, says which variable is to blame where that fails, and
reads off a pickle which modules it will need, so that a fork server can import them once.
"""

from __future__ import annotations

import functools
import pickletools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastvec._core.pickles import dumps
from fastvec._core.protocol import WorkerPayload
from fastvec._core.sharing import SharedMemory, SharingPickler
from fastvec.errors import FactoryError

__all__ = ["check_factories", "modules_in", "pickle_payload", "strings_in"]


def check_factories(env_fns: Sequence[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """The factories as a list.

    Raises:
        FactoryError: Something else than functions was given.
    """
    if callable(env_fns) or not hasattr(env_fns, "__iter__"):
        raise FactoryError(
            "env_fns must be a list of functions that make environments, one an environment (`[make_env] * 8`), got "
            f"{env_fns!r}"
        )
    factories = list(env_fns)
    for index, env_fn in enumerate(factories):
        if not callable(env_fn):
            raise FactoryError(
                f"env_fns[{index}] must be a function that makes an environment, got a {type(env_fn).__name__}: "
                "each worker makes its own, so pass for example `lambda: gymnasium.make(...)`, not what it returns"
            )
    _warn_of_late_binding(factories)
    return factories


def _warn_of_late_binding(factories: list[Callable[[], Any]]) -> None:
    """``[lambda: make(i) for i in range(n)]`` makes n times environment n - 1."""
    cells = [getattr(env_fn, "__closure__", None) for env_fn in factories]
    if len(factories) < 2 or len(set(map(id, factories))) == 1 or not cells[0]:
        return
    codes = {id(getattr(env_fn, "__code__", None)) for env_fn in factories}
    if len(codes) > 1 or any(other is None or list(map(id, other)) != list(map(id, cells[0])) for other in cells):
        return
    for name, cell in zip(factories[0].__code__.co_freevars, cells[0], strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if type(value) is int and value == len(factories) - 1:
            warnings.warn(
                f"all {len(factories)} environment factories see {name} = {value}: a function made in a loop sees the "
                f"loop variable's last value. Bind it at once: `lambda {name}={name}: ...`",
                UserWarning,
                stacklevel=5,
            )


def pickle_payload(payload: WorkerPayload) -> tuple[bytes, list[SharedMemory]]:
    """Pickle factories and what goes with them; the memories of shared arrays have to be sent beside it.

    Raises:
        FactoryError: One cannot be pickled; names the variable that prevents it where that can be found.
    """
    try:
        if SharingPickler.is_needed():
            return SharingPickler.dumps(tuple(payload))
        return dumps(tuple(payload)), []
    except FactoryError:
        raise
    except Exception as error:
        for index, env_fn in enumerate(payload.env_fns):
            try:
                dumps(env_fn)
            except Exception:
                blame = _culprit(env_fn, f"env_fns[{index}]", depth=4)
                raise FactoryError(
                    f"env_fns[{index}] cannot be sent to a worker process: {blame or repr(env_fn)} cannot be pickled "
                    f"({error}). Make that object inside the factory, or use start_method='fork'"
                ) from error
        raise


def _culprit(value: Any, name: str, depth: int) -> str | None:
    """The innermost named part of a value that cannot be pickled."""
    for part_name, part in _parts(value):
        try:
            dumps(part)
        except Exception:
            deeper = _culprit(part, part_name, depth - 1) if depth else None
            return deeper or f"the variable {part_name!r} of {name}, a {type(part).__name__},"
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield "func", value.func
        yield from ((f"args[{i}]", part) for i, part in enumerate(value.args))
        yield from value.keywords.items()
        return
    code = getattr(value, "__code__", None)
    if code is not None:
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield name, cell.cell_contents
            except ValueError:
                continue
        yield from ((name, value.__globals__[name]) for name in code.co_names if name in value.__globals__)
    elif isinstance(value, type):
        yield from ((name, part) for name, part in vars(value).items() if hasattr(part, "__code__"))
    elif isinstance(value, dict):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from vars(value).items()


def modules_in(data: bytes) -> list[str]:
    """The modules that unpickling will import, in order; ``__main__`` travels by value and is not among them."""
    modules: dict[str, None] = {}
    memo: list[str | None] = []
    strings: list[str | None] = []
    last: str | None = None
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name == "MEMOIZE":
            memo.append(last)
            continue
        if name in ("SHORT_BINUNICODE", "BINUNICODE"):
            last = argument
            strings.append(last)
        elif name in ("BINGET", "LONG_BINGET"):
            last = memo[int(argument or 0)]
            strings.append(last)
        else:
            if name == "STACK_GLOBAL" and len(strings) >= 2:
                modules[strings[-2] or ""] = None
            elif name == "TUPLE1" and last in sys.modules:  # cloudpickle's subimport("module")
                modules[last or ""] = None
            last = None
    return [module for module in modules if module in sys.modules and module not in ("__main__", "builtins")]


def strings_in(data: bytes) -> set[str]:
    """Every text in a pickle."""
    return {argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)}
