"""Other libraries, each with its own class for the same purpose, in the setting that its documentation recommends.

Each is optional, and imported only where it is used.
"""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from suite.stepper import Turn
from suite.workloads import Plan

__all__ = [
    "EnvPoolStepper",
    "PufferStepper",
    "TianshouStepper",
    "TorchRLStepper",
    "envpool_refuses",
    "puffer_refuses",
]


def start_with(method: str) -> None:
    """Have those who let nobody choose start their processes so; importing TorchRL changes the default."""
    multiprocessing.set_start_method(method, force=True)


class TianshouStepper:
    """A process an environment, observations in shared memory. Its user resets what has ended, which is done here."""

    def __init__(self, plan: Plan) -> None:
        from tianshou.env import ShmemVectorEnv

        start_with(plan.start_method)
        self._plan, self._venv = plan, ShmemVectorEnv(plan.env_fns)

    def restart(self) -> Any:
        for env_id in range(self._plan.n):
            self._last, _ = self._venv.reset(env_id, seed=env_id)
        return None

    def advance(self, first: int, steps: int) -> Turn:
        window, venv = self._plan.window(first, steps), self._venv
        began = perf_counter()
        for actions in window:
            observations, _, terminated, truncated, _ = venv.step(actions)
            ended = terminated | truncated
            if ended.any():
                env_ids = np.flatnonzero(ended)
                observations[env_ids] = venv.reset(env_ids)[0]
        return Turn(perf_counter() - began, observations)

    def close(self) -> None:
        self._venv.close()


class SeededEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Resets with its own seed until the first step, for who gives no seed to a single environment of a batch."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], seed: int) -> None:
        super().__init__(make())
        self._seed: int | None = seed

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=self._seed, options=options)

    def step(self, action: Any) -> Any:
        self._seed = None
        self.step = self.env.step  # type: ignore[method-assign]  # from here on the wrapper costs nothing
        return self.env.step(action)


def _torchrl_env(make: Callable[[], gymnasium.Env[Any, Any]], seed: int) -> Any:
    from torchrl.envs import GymWrapper

    return GymWrapper(SeededEnv(make, seed), categorical_action_encoding=True)


class TorchRLStepper:
    """A process an environment, tensordicts in shared memory."""

    def __init__(self, plan: Plan) -> None:
        import torch
        from torchrl.envs import ParallelEnv

        start_with(plan.start_method)
        self._plan, self._tensor = plan, torch.from_numpy
        makes = [partial(_torchrl_env, plan.work.make, env_id) for env_id in range(plan.n)]
        self._venv = ParallelEnv(plan.n, makes, mp_start_method=plan.start_method)
        self._data: Any = None

    def restart(self) -> Any:
        self._data = self._venv.reset()

    def advance(self, first: int, steps: int) -> Turn:
        window = [self._tensor(actions) for actions in self._plan.window(first, steps)]
        venv, data = self._venv, self._data
        began = perf_counter()
        for actions in window:
            data["action"] = actions
            _, data = venv.step_and_maybe_reset(data)
        seconds = perf_counter() - began
        self._data = data
        keys = venv.observation_spec.keys()
        observations = {key: data[key].numpy() for key in keys}
        return Turn(seconds, observations.get("observation", observations))

    def close(self) -> None:
        self._venv.close()


def _puffer_env(make: Callable[[], gymnasium.Env[Any, Any]], **options: Any) -> Any:
    from pufferlib.emulation import GymnasiumPufferEnv

    return GymnasiumPufferEnv(env_creator=make, **options)


def puffer_refuses(plan: Plan) -> str:
    if not plan.workers:
        return "without workers it is another class"
    return "" if plan.n % plan.workers == 0 else "the environments must divide evenly among its workers"


class PufferStepper:
    """Environments shared out to workers that spin, observations handed out without a copy."""

    def __init__(self, plan: Plan) -> None:
        import pufferlib.vector

        start_with(plan.start_method)
        self._plan = plan
        make = partial(_puffer_env, plan.work.make)
        with contextlib.redirect_stdout(io.StringIO()):
            self._venv = pufferlib.vector.make(
                make, backend=pufferlib.vector.Multiprocessing, num_envs=plan.n, num_workers=plan.workers
            )
        self._dtype = self._venv.single_action_space.dtype

    def restart(self) -> Any:
        self._venv.reset(seed=0)

    def advance(self, first: int, steps: int) -> Turn:
        window = [actions.astype(self._dtype, copy=False) for actions in self._plan.window(first, steps)]
        step = self._venv.step
        began = perf_counter()
        for actions in window:
            result = step(actions)
        return Turn(perf_counter() - began, result[0])

    def close(self) -> None:
        self._venv.close()


@functools.lru_cache(maxsize=1)
def _envpool_ids() -> frozenset[str]:
    import envpool

    return frozenset(envpool.list_all_envs())


def envpool_refuses(plan: Plan) -> str:
    return "" if plan.work.name in _envpool_ids() else "has only environments of its own"


class EnvPoolStepper:
    """Environments in C++ on threads: another thing, shown for the distance."""

    def __init__(self, plan: Plan) -> None:
        import envpool

        self._plan = plan
        self._venv = envpool.make_gymnasium(
            plan.work.name, num_envs=plan.n, num_threads=max(1, plan.workers), seed=0, batch_size=plan.n
        )
        space = self._venv.action_space
        self._dtype = np.int32 if isinstance(space, spaces.Discrete) else space.dtype

    def restart(self) -> Any:
        self._venv.reset()

    def advance(self, first: int, steps: int) -> Turn:
        window = [actions.astype(self._dtype) for actions in self._plan.window(first, steps)]
        step = self._venv.step
        began = perf_counter()
        for actions in window:
            result = step(actions)
        return Turn(perf_counter() - began, result[0])

    def close(self) -> None:
        self._venv.close()
