"""With which options environments are reset when their episodes have ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastvec._core.options import ResetOptions
from fastvec.errors import EnvError

__all__ = ["AutomaticOptions"]


class AutomaticOptions:
    """The options of automatic resets of a slice of environments.

    Args:
        rule: None for none, ``"keep"`` for those of the last reset by command, or a function of an environment's index
            and the number of automatic resets since that one.
        env_ids: The environments.

    Attributes:
        rule: As given.
        last: The options of each environment's last reset by command.
        counts: How many automatic ones there were since.
    """

    def __init__(self, rule: ResetOptions, env_ids: range) -> None:
        self.rule, self._env_ids = rule, env_ids
        self.last: list[Any] = [None] * len(env_ids)
        self.counts = [0] * len(env_ids)

    def set(self, row: int, last: Any, count: int) -> None:
        """An environment was reset by command, or goes on here with what is known of it elsewhere."""
        self.last[row], self.counts[row] = last, count

    def next(self, row: int, *, count: bool = True) -> dict[str, Any]:
        """Keyword arguments for the next automatic reset of an environment.

        Args:
            row: Which one.
            count: Whether it is one that its user will see.
        """
        if self.rule is None:
            return {}
        if callable(self.rule):
            options = self.rule(self._env_ids[row], self.counts[row] + 1)
            if options is not None and not isinstance(options, Mapping):
                raise EnvError(f"reset_options must return a mapping or None, got {options!r}")
        else:
            options = self.last[row]
        self.counts[row] += count
        return {} if options is None else {"options": options}
