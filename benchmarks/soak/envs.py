"""Environments that draw everything from their own generator, and fail where they are told to.

They keep nothing from one episode to the next but `np_random`, so that a worker which is replaced between two
episodes by another one with the same generators cannot be told from the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from soak import faults
from soak.spaces import draw, text


@dataclass(frozen=True)
class Plan:
    """What an environment is made of.

    Attributes:
        observation_space: Its observations.
        action_space: Its actions, which come back in its infos.
        env_id: Which one it is.
        seed: Of the generator that it begins with.
        folder: Where it looks for faults; None to commit none.
        finite: Whether to return no NaN and no infinity.
        infos: How much it tells: 0 nothing, 1 numbers, 2 everything.
        horizon: The most steps of an episode.
        old_api: Whether its methods return what those of old Gym did.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    env_id: int
    seed: int
    folder: str | None
    finite: bool
    infos: int
    horizon: int
    old_api: bool

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """The environment: a plan is its factory."""
        return OldApiEnv(self) if self.old_api else SoakEnv(self)


class SoakEnv(gymnasium.Env[Any, Any]):
    """See :class:`Plan`."""

    render_mode = "rgb_array"

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.fault_in("constructor")
        self.observation_space, self.action_space = plan.observation_space, plan.action_space
        self._np_random, self._np_random_seed = seeding.np_random(plan.seed)
        self.count, self.length, self.tag = 0, 1, None

    def fault_in(self, where: str) -> str | None:
        if self.plan.folder is None:
            return None
        how = faults.ordered(self.plan.folder, self.plan.env_id, where)
        if how is not None:
            faults.commit(how)
        return how

    def observed(self) -> Any:
        return draw(self.observation_space, self.np_random, finite=self.plan.finite)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.fault_in("reset")
        super().reset(seed=seed)
        self.count, self.tag = 0, None
        self.length = int(self.np_random.integers(1, self.plan.horizon, endpoint=True))
        info: dict[str, Any] = {}
        if self.plan.infos and self.np_random.random() < 0.7:
            info = {"first": self.np_random.random(), "options": options}
        return self.observed(), info

    def step(self, action: Any) -> Any:
        how = self.fault_in("step")
        rng = self.np_random
        self.count += 1
        reward: Any = np.nan if how == "nan" else self.rewarded(rng)
        info = self.said(rng, action)
        done = self.count >= self.length
        end = int(rng.integers(3)) if done else 3
        terminated, truncated = end in (0, 2), end in (1, 2)
        odd = rng.random() < 0.3
        observation = self.observed()
        self.fault_in("late step")
        return observation, reward, terminated, np.bool_(truncated) if odd else truncated, info

    def rewarded(self, rng: np.random.Generator) -> Any:
        kind = rng.integers(8)
        value = rng.normal()
        if kind == 0:
            return int(value * 100)
        if kind == 1:
            return np.float32(value)
        if kind == 2 and not self.plan.finite:
            return float("nan") if value > 0 else float("-inf")
        return float(value)

    def said(self, rng: np.random.Generator, action: Any) -> dict[Any, Any]:
        if self.plan.infos == 0:
            return {}
        info: dict[Any, Any] = {
            "float": rng.random(),
            "narrow": np.float32(rng.random()),
            "half": np.float16(rng.random()),
            "int": self.count,
            "byte": np.uint8(rng.integers(256)),
            "wide": np.uint64(2**64 - 1 - self.count),
            "np_bool": np.bool_(self.count % 2),
            "vector": rng.random(3).astype(np.float32),
        }
        if self.plan.infos == 1:
            return info
        info |= {"action": action, "kind": type(action).__name__, "tag": self.tag, "bool": self.count > 3}
        odd = rng.integers(12)
        if odd == 0:
            info["text"] = text(rng, 5)
        elif odd == 1:
            info["big"] = 2**80 + self.count
        elif odd == 2:
            info["nested"] = {"deep": {"count": self.count, "text": text(rng, 3)}, "list": [1, 2.5, None]}
        elif odd == 3:
            info["ints"] = rng.integers(0, 9, int(rng.integers(0, 4)))
        elif odd == 4:
            info[f"key {rng.integers(40)}"] = rng.random()
        elif odd == 5:
            del info["int"]
        elif odd == 6:
            info["float"] = self.count
        elif odd == 7:
            info = dict(reversed(info.items()))
        elif odd == 8 and rng.random() < 0.2:
            info["blob"] = text(rng, 10) * 20_000
        elif odd == 9:
            info[(1, "key")] = complex(1, 2)
        return info

    # What is called from outside.

    def touch(self, by: int = 1) -> Any:
        """Moves the generator on."""
        return self.plan.env_id, self.np_random.random(by), self.tag

    def peek(self, size: int = 0) -> Any:
        """Changes nothing, returns as much as is wanted, and may fail."""
        self.fault_in("call")
        return {"count": self.count, "tag": self.tag, "blob": bytes(size)}

    def complain(self, env_id: int) -> int:
        """Fails in one environment, in workers and in the serial engine alike."""
        if env_id == self.plan.env_id:
            raise LookupError(f"env {env_id} complains")
        return self.count

    def render(self) -> Any:
        self.fault_in("call")
        return np.full((2, 2, 3), self.count % 256, np.uint8)

    def close(self) -> None:
        self.fault_in("close")


class OldApiEnv(SoakEnv):
    """The same by the API of old Gym."""

    def reset(self, **keywords: Any) -> Any:
        return super().reset(**keywords)[0]

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, bool(terminated or truncated), info


def later_options(env: int, number: int) -> dict[str, int] | None:
    """A `reset_options`."""
    return {"env": env, "number": number} if number % 3 else None
