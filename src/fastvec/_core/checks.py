"""Checks of single options, with errors that say what was expected and what came."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fastvec.errors import ConfigError

__all__ = ["all_of", "check_arguments", "check_count", "check_flag", "check_names", "check_seconds"]

#: Seconds beyond which the system's waits overflow; None is the way to say "for ever".
_LONGEST = 1e6


def check_count(name: str, value: Any, *, least: int) -> None:
    """Raise a ConfigError for what is no integer, or too small."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ConfigError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")


def check_seconds(name: str, value: Any) -> None:
    """Raise a ConfigError for what is neither None nor a positive number of seconds."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _LONGEST:
        raise ConfigError(f"{name} must be a positive number of seconds or None, got {value!r}")


def check_flag(name: str, value: Any) -> None:
    """Raise a ConfigError for what is neither True nor False: any text counts as true, also ``"no"``."""
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{name} must be True or False, got {value!r}")


def check_arguments(name: str, function: Any, arguments: str) -> None:
    """Raise a ConfigError for a function that cannot be called with so many arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some functions in C it is not known
        return
    try:
        signature.bind(*arguments.split(", "))
    except TypeError:
        raise ConfigError(f"{name} is called as {name}({arguments}), got a function of {signature}") from None


def check_names(name: str, values: Any) -> None:
    """Raise a ConfigError for what is no sequence of names of methods and attributes."""
    if isinstance(values, (str, Mapping)) or not all_of(values, str):
        raise ConfigError(f"{name} must be a sequence of names such as ['action_masks'], got {values!r}")
    for value in values:
        if not value.isidentifier() or value in ("reset", "step", "close"):
            raise ConfigError(f"{name} must name methods and attributes to be read after each step, got {value!r}")


def all_of(values: Any, kind: type | tuple[type, ...]) -> bool:
    """Whether it is some values, all of a kind."""
    return isinstance(values, Iterable) and all(isinstance(v, kind) and not isinstance(v, bool) for v in values)
