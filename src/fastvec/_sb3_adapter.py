"""How Stable-Baselines3 treats an environment that is not Gymnasium's. Imported by workers, so without SB3."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import gymnasium

from fastvec._hand_over import appending_writer
from fastvec._spaces import GymnasiumAdapter

__all__ = ["Sb3Adapter"]


@dataclass(frozen=True)
class Sb3Adapter(GymnasiumAdapter):
    """Accepts old Gym's environments as SB3 does, by way of shimmy."""

    def set_up(self, *, later: bool) -> None:
        """In a worker that takes the place of another, also have ``Monitor`` go on with the files that it finds."""
        super().set_up(later=later)
        # Without the module there is no Monitor among the factories, and importing it would import PyTorch.
        monitor = sys.modules.get("stable_baselines3.common.monitor")
        if later and monitor is not None:
            monitor.ResultsWriter = appending_writer(monitor)  # type: ignore[attr-defined]

    def prepare(self, env: Any) -> Any:
        """The environment itself, or a Gymnasium environment around it."""
        if isinstance(env, gymnasium.Env):
            return env
        from stable_baselines3.common.vec_env.patch_gym import _patch_env

        return _patch_env(env)
