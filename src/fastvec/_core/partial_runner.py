"""Stepping some environments of a slice and leaving the others as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastvec._core.protocol import StepNews
from fastvec._core.runner import EnvRunner

__all__ = ["PartialRunner"]


class PartialRunner(EnvRunner):
    """An :class:`EnvRunner` that also steps some of its environments."""

    def step_some(self, actions: Mapping[int, Any]) -> StepNews:
        """Step the environments for which there is an action, by row; see :meth:`EnvRunner.step`."""
        rows = [row for row, _ in self._roster.stepped]
        self._roster.step_only(actions)
        try:
            return self.step(actions)
        finally:
            self._roster.step_only(rows)
