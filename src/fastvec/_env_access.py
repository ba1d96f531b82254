"""What the faces do to single environments, run in the workers.

Functions of an environment, pickled by reference: this module must not import a framework.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium

__all__ = [
    "ClassName",
    "call_method",
    "call_or_get",
    "get_attr",
    "has_attr",
    "is_wrapped",
    "metadata",
    "render",
    "rendering",
    "set_attr",
    "set_wrapper_attr",
]

_MISSING = object()

#: A class by module and qualified name, for asking about it without importing it.
ClassName = tuple[str, str]


def get_attr(env: Any, name: str) -> Any:
    """The attribute of the outermost wrapper that has it."""
    return env.get_wrapper_attr(name)


def has_attr(env: Any, name: str) -> bool:
    """Whether a wrapper or the environment has the attribute; its value need not be picklable."""
    try:
        env.get_wrapper_attr(name)
    except AttributeError:
        return False
    return True


def set_attr(env: Any, name: str, value: Any) -> None:
    """Set an attribute of the outermost wrapper or environment that has it, else of the outermost.

    A wrapper that looks up in its environment what it does not have itself, by ``__getattr__``, does not have it:
    Gymnasium's own ``set_wrapper_attr`` would stop there.
    """
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if inspect.getattr_static(layer, name, _MISSING) is not _MISSING:
            break
        layer = layer.env
    setattr(layer if layer is env or hasattr(layer, name) else env, name, value)


def call_method(env: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the outermost wrapper that has it."""
    method: Callable[..., Any] = env.get_wrapper_attr(name)
    return method(*args, **kwargs)


def render(env: Any) -> Any:
    """What ``env.render()`` returns."""
    return env.render()


def metadata(env: Any) -> dict[str, Any]:
    """A copy of the environment's metadata."""
    return dict(env.metadata or {})


def rendering(env: Any) -> tuple[dict[str, Any], str | None]:
    """A copy of the environment's metadata, and its render mode."""
    return metadata(env), env.render_mode


def call_or_get(env: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """What a method returns, or the value of an attribute that is none."""
    attribute = env.get_wrapper_attr(name)
    return attribute(*args, **kwargs) if callable(attribute) else attribute


def set_wrapper_attr(env: Any, name: str, value: Any) -> None:
    """Set an attribute where it exists, else of the outermost wrapper."""
    env.set_wrapper_attr(name, value)


def is_wrapped(env: Any, wrapper: ClassName | type) -> bool:
    """Whether the environment is in a wrapper of a class, or of a subclass of it."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(wrapper, type):
            if isinstance(env, wrapper):
                return True
        elif any((base.__module__, base.__qualname__) == wrapper for base in type(env).__mro__):
            return True
        env = env.env
    return False
