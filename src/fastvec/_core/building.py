"""Environments made by their factories, each failure with the name of who failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastvec._core.failures import EnvFailure
from fastvec._core.protocol import Adapter
from fastvec.errors import DuplicateEnvError, FactoryError

__all__ = ["blame", "build_envs", "build_spares", "close_envs"]


def build_envs(env_fns: Sequence[Callable[[], Any]], env_ids: range, adapter: Adapter) -> list[Any]:
    """Call the factories.

    Raises:
        EnvFailure: A factory raised, returned nothing of use, or an object that another one has returned.
    """
    envs: list[Any] = []
    try:
        for index, env_fn in zip(env_ids, env_fns, strict=True):
            with blame(index, "constructor"):
                envs.append(_build(index, env_fn, envs, env_ids, adapter))
    except EnvFailure:
        close_envs(envs)
        raise
    return envs


def build_spares(
    env_fns: Sequence[Callable[[], Any]], env_ids: range, adapter: Adapter, envs: Sequence[Any], count: int
) -> list[Any]:
    """Call the factories again, in turn, for some environments beside those that there are.

    Raises:
        EnvFailure: As of :func:`build_envs`.
    """
    if not count:
        return []
    ids = list(env_ids)
    everyone = list(envs)
    with adapter.building_spares() as spares:
        try:
            for number in range(count):
                index = env_ids[number % len(env_ids)]
                with blame(index, "constructor"):
                    env = _build(index, env_fns[number % len(env_ids)], everyone, ids, adapter)
                spares.append(env)
                everyone.append(env)
                ids.append(index)
        except EnvFailure:
            close_envs(spares)
            raise
    return spares


def _build(index: int, env_fn: Callable[[], Any], others: list[Any], env_ids: Sequence[int], adapter: Adapter) -> Any:
    env = env_fn()
    if env is None:
        raise FactoryError(f"the factory of env {index} returned None: expected an environment")
    if not hasattr(env, "step") or not hasattr(env, "reset"):
        raise FactoryError(f"the factory of env {index} returned a {type(env).__name__}: expected an environment")
    env = adapter.prepare(env)
    for twin, other in zip(env_ids, others, strict=False):
        if getattr(other, "unwrapped", other) is getattr(env, "unwrapped", env):
            raise DuplicateEnvError(
                f"the factories of env {twin} and env {index} returned the same instance instead of creating "
                "different objects: replace `lambda: env` by a function that makes a new environment at each call"
            )
    return env


def close_envs(envs: list[Any]) -> None:
    """Close environments that are given up, whatever they say to it."""
    for env in envs:
        with contextlib.suppress(Exception):
            env.close()


@contextlib.contextmanager
def blame(index: int | None, command: str) -> Iterator[None]:
    """Turn what an environment raises in the block into an EnvFailure."""
    try:
        yield
    except BaseException as error:
        raise EnvFailure(index, command, error) from error
