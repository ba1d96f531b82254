"""Environments whose cost is known: nothing, a busy loop, now and then a slow reset, or observations that are large."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


def burn(seconds: float) -> None:
    """Keep a CPU busy, as an environment does that computes; `time.sleep` would leave it to others."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class NoOpEnv(gymnasium.Env[Any, Any]):
    """The cheapest step there is: a count, in a buffer that is used again, and no end of the episode."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.buffer = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.buffer[:] = 0
        return self.buffer, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.buffer[0] += 1
        return self.buffer, 1.0, False, False, {}


class BusyEnv(NoOpEnv):
    """Computes for a fixed time in each step."""

    def __init__(self, step_us: float) -> None:
        super().__init__()
        self.seconds = step_us * 1e-6

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        burn(self.seconds)
        return super().step(action)


class ExponentialEnv(NoOpEnv):
    """Computes for a time that is drawn for each step: most are short, a few long, so that somebody is always late."""

    def __init__(self, mean_us: float) -> None:
        super().__init__()
        self.mean, self.count = mean_us * 1e-6, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed)
        self.times = self.np_random.exponential(self.mean, 1024).tolist()
        return result

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count = (self.count + 1) % 1024
        burn(self.times[self.count])
        return super().step(action)


class SlowResetEnv(BusyEnv):
    """Episodes of 20 to 60 steps, and a reset that costs as much as a hundred of them."""

    def __init__(self, step_us: float = 20.0) -> None:
        super().__init__(step_us)
        self.left = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed)
        self.left = int(self.np_random.integers(20, 61))
        burn(100 * self.seconds)
        return result

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, _, _, info = super().step(action)
        self.left -= 1
        return observation, reward, self.left == 0, False, info


class ImageEnv(NoOpEnv):
    """Shows one of eight pictures, made beforehand: what remains is to move them."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.pictures = self.np_random.integers(0, 256, (8, *self.observation_space.shape), np.uint8)  # type: ignore
        return self.pictures[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count = (self.count + 1) % 8
        return self.pictures[self.count], 1.0, False, False, {}


class DictEnv(NoOpEnv):
    """Observes a small picture, a vector and a goal, under names."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (36, 36, 3), np.uint8),
                "goal": spaces.Box(-np.inf, np.inf, (3,), np.float64),
                "joints": spaces.Box(-np.inf, np.inf, (16,), np.float32),
            }
        )
        self.seen: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = {
            "camera": self.np_random.integers(0, 256, (36, 36, 3), np.uint8),
            "goal": self.np_random.random(3),
            "joints": self.np_random.random(16, np.float32),
        }
        return dict(self.seen), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.seen["joints"][0] += 1
        return dict(self.seen), 1.0, False, False, {}
