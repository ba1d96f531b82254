"""What Gymnasium's vector environments let a caller ask of the single environments: calls, attributes, pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from fastvec import _env_access
from fastvec import _vector_batches as batches
from fastvec._core.engine import Engine
from fastvec._core.state import EngineState
from fastvec.errors import ConfigError

__all__ = ["VectorCalls"]


class VectorCalls(VectorEnv[Any, Any, Any]):
    """A vector environment whose environments can be asked for things.

    Attributes:
        num_envs: How many environments there are.
    """

    num_envs: int
    _engine: Engine

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What a method of each environment returns, or the values of an attribute."""
        batches.check_idle(self._engine.state, "call_async")
        known = None if args or kwargs else self._engine.came_along([f"{name}()", name], range(self.num_envs))
        if known is None:
            self.call_async(name, *args, **kwargs)
            return self.call_wait()
        return tuple(known)

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start a :meth:`call`."""
        batches.check_idle(self._engine.state, "call_async")
        if name in ("reset", "step", "close"):
            raise ConfigError(f"{name} cannot be called by call(): use {name}() of the vector environment itself")
        self._engine.send_call(name, _env_access.call_or_get, name, *args, env_ids=range(self.num_envs), kwargs=kwargs)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Finish the call.

        Args:
            timeout: Seconds to wait. After a :class:`~fastvec.errors.WorkerTimeoutError` the call is still pending.
        """
        batches.check_pending(self._engine.state, EngineState.CALLING)
        return tuple(self._engine.recv_call(timeout))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The values of an attribute, looked up through the wrappers; what a method returns, if it is one."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute where it exists, else of the outermost wrappers.

        Args:
            name: Its name.
            values: A list or tuple has a value for each environment; anything else is the value of all.
        """
        batches.check_idle(self._engine.state, "set_attr")
        if isinstance(values, (list, tuple)):
            each = batches.one_each(name, values, self.num_envs)
            self._call("set_attr", _env_access.set_wrapper_attr, name, each=each, lasting=True)
        else:
            self._call("set_attr", _env_access.set_wrapper_attr, name, values, lasting=True)

    def render(self) -> tuple[Any, ...]:
        """What each environment renders."""
        return self.call("render")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """A copy of each environment's random generator."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each environment's generator."""
        return self.get_attr("np_random_seed")

    def _call(self, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        return self._engine.call(name, function, *args, env_ids=range(self.num_envs), **options)
