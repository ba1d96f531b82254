"""What Stable-Baselines3's ``VecEnv`` lets a caller ask of the single environments: methods, attributes, wrappers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices

from fastvec import _env_access
from fastvec._core.engine import Engine

__all__ = ["VecEnvCalls"]


class VecEnvCalls(VecEnv):
    """A ``VecEnv`` whose environments can be asked for things."""

    _engine: Engine

    def has_attr(self, attr_name: str) -> bool:
        """Whether every environment has an attribute, whose value need not be picklable."""
        return all(self._call("has_attr", _env_access.has_attr, attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The values of an attribute, looked up through the wrappers."""
        env_ids = self._env_ids(indices)
        known = self._engine.came_along([attr_name], env_ids)
        return known or self._engine.call("get_attr", _env_access.get_attr, attr_name, env_ids=env_ids)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute to one value, as it is: where it exists, looked up through the wrappers, else outermost."""
        env_ids = self._env_ids(indices)
        self._engine.call("set_attr", _env_access.set_attr, attr_name, value, env_ids=env_ids, lasting=True)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the environments, and return what it returns."""
        env_ids = self._env_ids(indices)
        known = None if method_args or method_kwargs else self._engine.came_along([f"{method_name}()"], env_ids)
        return known or self._engine.call(
            method_name,
            _env_access.call_method,
            method_name,
            *method_args,
            env_ids=env_ids,
            kwargs=method_kwargs,
        )

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether the environments are in a wrapper of a class."""
        # By name where the name is unique: a worker then need not import a class that it cannot have met.
        name = (wrapper_class.__module__, wrapper_class.__qualname__)
        wrapper = wrapper_class if "<locals>" in wrapper_class.__qualname__ else name
        return self._call("env_is_wrapped", _env_access.is_wrapped, wrapper, indices=indices)

    def _call(self, name: str, function: Callable[..., Any], *args: Any, indices: VecEnvIndices = None) -> list[Any]:
        return self._engine.call(name, function, *args, env_ids=self._env_ids(indices))

    def _env_ids(self, indices: VecEnvIndices) -> list[int]:
        asked = [indices] if isinstance(indices, (int, np.integer)) else self._get_indices(indices)
        env_ids = [operator.index(index) for index in asked]
        for index in env_ids:
            if not -self.num_envs <= index < self.num_envs:
                raise IndexError(f"there is no env {index}: expected an index from 0 to {self.num_envs - 1}")
        return [index % self.num_envs for index in env_ids]
