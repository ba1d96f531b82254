"""The environment of all reproductions: its numbers show which one it is, and which step."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

#: Held by a thread of the program in one reproduction, and wanted by environments.
LOCK = threading.Lock()

#: Set by the program after the import, so that only a forked worker has it.
MARK: list[str] = []

Hook = Callable[["TinyEnv"], None]


class TinyEnv(gymnasium.Env):
    """Observes ``[env_id, step]``; the reward is the step; ``hook`` is called in each step, after counting it."""

    def __init__(self, env_id: int = 0, horizon: int | None = None, hook: Hook | None = None) -> None:
        self.observation_space: spaces.Space = spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(5)
        self.env_id, self.horizon, self.hook, self.count = env_id, horizon, hook, 0
        self.goal = [0, 0]
        self.lock = threading.Lock()  # what cannot be pickled
        self.kinds: list[str] = []
        self.options: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.options.append(options)
        self.count = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.count += 1
        self.kinds.append(type(action).__name__)
        if self.hook:
            self.hook(self)
        return self.observe(), self.reward(), False, self.count == self.horizon, self.info()

    def observe(self) -> Any:
        return np.array([self.env_id, self.count], np.float32)

    def reward(self) -> Any:
        return float(self.count)

    def info(self) -> dict[str, Any]:
        return {}

    def pid(self) -> int:
        return os.getpid()

    def has_module(self, name: str) -> bool:
        return name in sys.modules

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def affinity(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))

    def base_goal(self) -> Any:
        return self.unwrapped.goal

    def mark(self) -> list[str]:
        return MARK

    def compute_threads(self) -> int:
        from threadpoolctl import threadpool_info

        np.ones((100, 100)) @ np.ones((100, 100))
        return max((pool["num_threads"] for pool in threadpool_info()), default=1)


class Returning(TinyEnv):
    """Returns from each reset and step what it is told to."""

    def __init__(self, space: spaces.Space, values: list[Any], env_id: int = 0) -> None:
        super().__init__(env_id)
        self.observation_space, self.values = space, values

    def observe(self) -> Any:
        return self.values[min(self.count, len(self.values) - 1)]


class Rewarding(TinyEnv):
    """Rewards its steps in turn with what it is told to."""

    def __init__(self, rewards: list[Any], env_id: int = 0) -> None:
        super().__init__(env_id)
        self.rewards = rewards

    def reward(self) -> Any:
        return self.rewards[(self.count - 1) % len(self.rewards)]


class Telling(TinyEnv):
    """Returns the info that it is told to."""

    def __init__(self, info: dict[str, Any], env_id: int = 0) -> None:
        super().__init__(env_id)
        self.told = info

    def info(self) -> dict[str, Any]:
        return self.told


class Refilling(TinyEnv):
    """Observes in one array that it fills again and again."""

    buffer: Any = None

    def observe(self) -> Any:
        if self.buffer is None:
            self.buffer = np.zeros(2, np.float32)
        self.buffer[:] = self.env_id, self.count
        return self.buffer


# Hooks refer to functions of this module: what is defined inside a function travels by value, and its source line is
# in no traceback.


def raising(at: int = 3) -> Hook:
    return partial(_raise, at)


def _raise(at: int, env: TinyEnv) -> None:
    if env.count == at:
        raise ValueError("bad torque")


def killing(signal_number: int, at: int = 3) -> Hook:
    return partial(_kill, signal_number, at)


def _kill(signal_number: int, at: int, env: TinyEnv) -> None:
    if env.count == at:
        os.kill(os.getpid(), signal_number)
        time.sleep(60)


def exiting(at: int = 3) -> Hook:
    return partial(_exit, at)


def _exit(at: int, env: TinyEnv) -> None:
    if env.count == at:
        os._exit(9)


def sleeping(seconds: float, at: int | None = None) -> Hook:
    """Sleeps in one step, or in each."""
    return partial(_sleep, seconds, at)


def _sleep(seconds: float, at: int | None, env: TinyEnv) -> None:
    if at in (None, env.count):
        time.sleep(seconds)


def waiting_for(path: str, at: int) -> Hook:
    """Waits in one step until a file is there."""
    return partial(_wait_for, path, at)


def _wait_for(path: str, at: int, env: TinyEnv) -> None:
    while env.count == at and not Path(path).exists():
        time.sleep(0.01)


def taking_the_lock(env: TinyEnv) -> None:
    with LOCK:
        pass
