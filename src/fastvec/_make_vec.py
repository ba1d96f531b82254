"""Vector environments by the id of an environment, in the manner of ``gymnasium.make_vec``."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec

from fastvec._core.options import EngineOptions
from fastvec.errors import ConfigError
from fastvec.gymnasium import SharedMemVectorEnv

__all__ = ["make_vec"]

_OPTIONS = EngineOptions.__annotations__.keys()

#: What ``gymnasium.make_vec`` keeps in a spec beside the arguments of single environments.
_VECTOR_KEYS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")


def make_vec(
    id: str | EnvSpec,
    num_envs: int = 1,
    vectorization_mode: str | None = None,
    vector_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Callable[[Any], Any]] | None = None,
    **kwargs: Any,
) -> SharedMemVectorEnv:
    """Environments of one registered kind, stepped together: ``gymnasium.make_vec`` for :class:`SharedMemVectorEnv`.

    Args:
        id: Name of a registered environment, also as ``"module:Name-v0"``, or its spec; of a spec that a vector
            environment has, what was given then holds again.
        num_envs: How many environments.
        vectorization_mode: ``"async"`` (or None) runs them in workers, ``"sync"`` in this process.
        vector_kwargs: Options of :class:`~fastvec.gymnasium.SharedMemVectorEnv`.
        wrappers: Functions applied to each environment, in this order.
        **kwargs: Arguments of the environments, as for ``gymnasium.make``.

    Raises:
        gymnasium.error.Error: There is no such environment.
        ConfigError: Another mode was asked for, or an option is wrong.
    """
    if isinstance(id, str):
        module, colon, name = id.rpartition(":")
        if colon:
            importlib.import_module(module)
        id = _registered(name)
    if not isinstance(id, EnvSpec):
        raise gymnasium.error.Error(f"id must be the name of an environment or its EnvSpec, got {id!r}")
    spec = copy.deepcopy(id)
    own = {key: spec.kwargs.pop(key) for key in _VECTOR_KEYS if key in spec.kwargs}
    num_envs = own.get("num_envs", num_envs)
    mode = getattr(vectorization_mode, "value", vectorization_mode) or own.get("vectorization_mode", "async")
    if mode not in ("async", "sync"):
        raise ConfigError(f"vectorization_mode must be 'async' or 'sync', got {mode!r}: gymnasium.make_vec has others")
    misplaced = sorted(kwargs.keys() & inspect.signature(SharedMemVectorEnv).parameters | kwargs.keys() & _OPTIONS)
    if misplaced:
        raise ConfigError(
            f"{', '.join(misplaced)}: options of the vector environment go into vector_kwargs={{...}}; what is "
            "given by name is for the environments"
        )
    if isinstance(num_envs, bool) or not hasattr(num_envs, "__index__") or num_envs < 1:
        raise ConfigError(f"num_envs must be a positive integer, got {num_envs!r}")
    if callable(wrappers):
        raise ConfigError(f"wrappers must be a sequence of functions, got {wrappers!r}: put it into a list")
    options = dict(vector_kwargs or own.get("vector_kwargs") or {})
    wrappers = wrappers or own.get("wrappers") or ()
    arguments = {**spec.kwargs, **kwargs}
    spec.kwargs = {}
    if spec.entry_point is None:
        raise ConfigError(f"{spec.id} has no entry point for single environments: use gymnasium.make_vec")
    factory = functools.partial(_make, spec, arguments, wrappers)
    serial: dict[str, Any] = {"num_workers": 0} if mode == "sync" else {}
    venv = SharedMemVectorEnv([factory] * num_envs, **(serial | options))
    spec.kwargs = arguments | {"vectorization_mode": mode}
    if num_envs != 1:
        spec.kwargs["num_envs"] = num_envs
    if options:
        spec.kwargs["vector_kwargs"] = options
    if wrappers:
        spec.kwargs["wrappers"] = wrappers
    venv.spec = spec
    return venv


def _make(spec: EnvSpec, arguments: Mapping[str, Any], wrappers: Sequence[Callable[[Any], Any]]) -> Any:
    env: Any = gymnasium.make(spec, **copy.deepcopy(arguments))
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def _registered(name: str) -> EnvSpec:
    """The spec of a name; of its latest version, where it names none."""
    namespace, base, version = registration.parse_env_id(name)
    if version is None and name not in gymnasium.registry:
        version = registration.find_highest_version(namespace, base)
        if version is not None:
            name = registration.get_env_id(namespace, base, version)
            gymnasium.logger.warn(
                f"Using the latest versioned environment `{name}` instead of the unversioned `{base}`."
            )
    return gymnasium.spec(name)
