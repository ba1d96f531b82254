"""The engine: many environments, stepped together.

:class:`Engine` is what a face sees. Two exist: :class:`~fastvec._core.processes.ProcessEngine`,
with workers, and :class:`~fastvec._core.serial.SerialEngine`, which runs the same code in this process.

States of an engine, and what each call does to it::

    state      send()      recv()            reset()            call()             close()
    IDLE       → PENDING   CallError         IDLE               IDLE               → CLOSED
    PENDING    CallError   → IDLE            drops the step     receives the step  → CLOSED
                           timeout: PENDING                     first, keeps it
    BROKEN     BrokenError from everything that works with environments             → CLOSED
    CLOSED     ClosedError from everything that works with environments             nothing
    FOREIGN    CallError, in a forked child of the process that made the engine     nothing

What an environment raises in a step or a reset, and the death of a worker, break the engine. What
it raises in a call does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from fastvec._core.results import ResetResult, StepResult
from fastvec._core.structure import EnvDescription

__all__ = ["Engine", "EngineState"]


class EngineState(Enum):
    """See the table in the module's docstring."""

    IDLE = "idle"
    PENDING = "pending"
    BROKEN = "broken"
    CLOSED = "closed"
    FOREIGN = "foreign"


class Engine(Protocol):
    """What a face sees of an engine."""

    num_envs: int
    description: EnvDescription

    @property
    def state(self) -> EngineState:
        """Where in its life it is."""

    def reset(self, seeds: Sequence[int | None], options: Sequence[Any]) -> ResetResult:
        """Reset every environment, each with its seed and options; a false option is not passed on."""

    def send(self, actions: Any) -> None:
        """Start a step. The actions are checked first: an ActionError has touched nothing."""

    def recv(self, timeout: float | None = None) -> StepResult:
        """Finish the step. After a WorkerTimeoutError it is still pending."""

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        env_ids: Iterable[int],
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """``function(env, *args, **kwargs)`` for some environments, in the order of ``env_ids``."""

    def close(self) -> None:
        """Close every environment and give everything back. Idempotent, and bounded in time."""
