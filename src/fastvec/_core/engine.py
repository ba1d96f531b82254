"""The engine: many environments, stepped together.

An :class:`Engine` is what a face sees. Two exist: :class:`~fastvec._core.processes.ProcessEngine`,
with workers, and :class:`~fastvec._core.serial.SerialEngine`, which runs the same code in this process.
This module has what they share: which call is possible when.

States of an engine, and what each call does to it::

    state       send_x()        recv_x()           reset()            call()             close()
    IDLE        → x-ING         CallError          IDLE               IDLE               → CLOSED
    RESETTING,  CallError       → IDLE             drops what is      receives what is   → CLOSED
    STEPPING,                   timeout: same      pending            pending, keeps it
    SENDING
    CALLING     CallError       → IDLE             drops the call     CallError          → CLOSED
                                timeout: same
    BROKEN      BrokenError from everything that works with environments                 → CLOSED
    CLOSED      ClosedError from everything that works with environments                 nothing
    FOREIGN     CallError, in a forked child of the process that made the engine         nothing

``x`` is a reset, a step or a call, and ``recv_x()`` receives what ``send_x()`` has sent. While steps of some
environments are pending (SENDING), more can be sent, and the engine is IDLE when all are received. What an
environment raises in a step or a reset, and the death of a worker, break the engine. What it raises
in a call does not.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastvec._core.actions import check_actions, check_env_ids
from fastvec._core.channel import deadline_after
from fastvec._core.config import AutoresetMode, EngineConfig
from fastvec._core.results import ResetResult, SomeResult, StepResult
from fastvec._core.state import PENDING, Call, CallOutcome, EngineState, Reset
from fastvec._core.structure import EnvDescription
from fastvec.errors import BrokenError, CallError, ClosedError, ConfigError

__all__ = ["Engine"]


class Engine(ABC):
    """What a face sees of an engine.

    Attributes:
        num_envs: How many environments there are.
        description: What they declare.
        state: Where in its life the engine is.
    """

    description: EnvDescription

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._limits = {
            EngineState.RESETTING: config.reset_timeout,
            EngineState.STEPPING: config.step_timeout,
            EngineState.CALLING: None,
            EngineState.SENDING: config.step_timeout,
        }
        self._why_broken = ""
        # Reads what came along with the last step or reset, as long as nothing has been sent since.
        self._riders: Callable[[], list[dict[str, Any]]] | None = None
        # What a call has received in passing, for the recv() that it belongs to.
        self._received: Any = None
        self._gone = False
        # Environments whose step is not received yet, where they are stepped one by one.
        self._sent: set[int] = set()
        self.num_envs = config.num_envs
        self.state = EngineState.IDLE

    def reset(self, arguments: Sequence[Mapping[str, Any]]) -> ResetResult:
        """Reset every environment, each with its keyword arguments."""
        self._check_usable("reset()")
        seconds = self._config.reset_timeout
        self._riders = None
        self._start_reset(Reset(arguments, None), deadline_after(seconds))
        self._drop_pending()
        # What does not come in time is dropped by the next command.
        self.state = EngineState.IDLE
        return self._finish_reset(deadline_after(seconds), seconds)

    def send_reset(self, arguments: Sequence[Mapping[str, Any]], mask: NDArray[np.bool_] | None = None) -> None:
        """Start to reset every environment, or those that a mask selects; the others keep their observations."""
        self._check_idle(EngineState.RESETTING)
        self._riders = None
        self._start_reset(Reset(arguments, mask), deadline_after(self._config.reset_timeout))
        self.state = EngineState.RESETTING

    def drop(self) -> None:
        """Give up what is pending: what comes of it is dropped by the next command."""
        if self.state in PENDING:
            self._riders = None
            self._drop_pending()
            self.state = EngineState.IDLE

    def recv_reset(self, timeout: float | None = None) -> ResetResult:
        """Finish the reset; ``timeout`` in seconds, None for ``reset_timeout``."""
        result: ResetResult = self._recv(EngineState.RESETTING, timeout)
        return result

    def send(self, actions: Any) -> None:
        """Start a step. The actions are checked first: an ActionError has touched nothing."""
        self._check_idle(EngineState.STEPPING)
        batch = check_actions(actions, self.num_envs, self.description.action)
        self._riders = None
        self._start_step(*batch, deadline_after(self._config.step_timeout))
        self.state = EngineState.STEPPING

    def recv(self, timeout: float | None = None) -> StepResult:
        """Finish the step; ``timeout`` in seconds, None for ``step_timeout``."""
        result: StepResult = self._recv(EngineState.STEPPING, timeout)
        return result

    def send_some(self, actions: Any, env_ids: Sequence[int]) -> None:
        """Start a step of some environments, of which none may be pending; the actions are checked first."""
        if self.state is not EngineState.SENDING:
            self._check_idle(EngineState.SENDING)
            self._drop_pending()  # what an interrupt has left
        if self._config.restart or self._config.recycles or self._config.autoreset_mode is AutoresetMode.DISABLED:
            raise ConfigError(
                "steps of some environments are not possible with on_failure='restart', max_episodes_per_worker, "
                f"max_worker_rss and autoreset_mode={AutoresetMode.DISABLED.value!r}: make these environments without"
            )
        check_env_ids(env_ids, self.num_envs, self._sent)
        batch = check_actions(actions, len(env_ids), self.description.action)
        self._riders = None
        self._start_some(*batch, env_ids)
        self._sent.update(env_ids)
        self.state = EngineState.SENDING

    def recv_some(self, min_envs: int, timeout: float | None = None) -> SomeResult:
        """The environments that are ready, at least so many; ``timeout`` in seconds, None for ``step_timeout``."""
        if self.state is not EngineState.SENDING:
            self._check_usable("recv()")
            raise CallError("no environment is being stepped: send actions first")
        if not 1 <= min_envs <= len(self._sent):
            raise CallError(
                f"min_envs must be from 1 to the number of environments that are pending, {len(self._sent)}, "
                f"got {min_envs}"
            )
        seconds = self._limits[self.state] if timeout is None else timeout
        result = self._finish_some(min_envs, deadline_after(seconds), seconds)
        self._sent.difference_update(result.env_ids.tolist())
        self.state = EngineState.SENDING if self._sent else EngineState.IDLE
        return result

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        env_ids: Iterable[int],
        kwargs: Mapping[str, Any] | None = None,
        each: list[tuple[Any, ...]] | None = None,
        lasting: bool = False,
    ) -> list[Any]:
        """``function(env, *args, *each[i], **kwargs)`` for some environments, in the order of ``env_ids``.

        With ``lasting`` it holds for their indices, whichever objects serve them later; then it has to be all of them.
        """
        self._check_usable(name)
        if lasting and self._config.spare_resets:
            self._check_lasting(name, env_ids, each)
        before = self.state
        if before is EngineState.CALLING:
            self._check_idle(before)
        if before is EngineState.SENDING:
            self._settle_some()
        elif before is not EngineState.IDLE:
            self._finish_pending(None)
        self._riders = None
        self._start_call(Call(name, function, args, dict(kwargs or {}), list(env_ids), each, lasting))
        self.state = before
        results, failure = self._finish_call(None, None)
        if failure is not None:
            raise failure
        return results

    def _check_lasting(self, name: str, env_ids: Iterable[int], each: list[tuple[Any, ...]] | None) -> None:
        if each is not None or set(env_ids) != set(range(self.num_envs)):
            raise ConfigError(
                f"with spare_resets={self._config.spare_resets} {name} must give all environments the same value: "
                "which object serves an index changes with each episode. To tell them apart leave the option out"
            )

    def came_along(self, keys: Sequence[str], env_ids: Sequence[int]) -> list[Any] | None:
        """What came with the last step or reset, and nothing has changed since; None where it takes a call to know.

        Args:
            keys: Under any of which it may have come; see :mod:`fastvec._core.riders`.
            env_ids: Of which environments, in which order.
        """
        if not any(key.removesuffix("()") in self._config.with_step for key in keys):
            return None
        before = self.state
        if before in (EngineState.RESETTING, EngineState.STEPPING):
            self._finish_pending(None)
            self.state = before
        elif before is not EngineState.IDLE:
            return None
        # Of one that is asked for twice the answers are two.
        if self._riders is None or len(set(env_ids)) < len(env_ids):
            return None
        values = self._riders()
        try:
            return [next(values[env_id][key] for key in keys if key in values[env_id]) for env_id in env_ids]
        except StopIteration:
            return None

    def send_call(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        env_ids: Iterable[int],
        kwargs: Mapping[str, Any] | None = None,
        each: list[tuple[Any, ...]] | None = None,
    ) -> None:
        """Start a :meth:`call`."""
        self._check_idle(EngineState.CALLING)
        self._riders = None
        self._start_call(Call(name, function, args, dict(kwargs or {}), list(env_ids), each))
        self.state = EngineState.CALLING

    def recv_call(self, timeout: float | None = None) -> list[Any]:
        """Finish the call; ``timeout`` in seconds, None for none."""
        outcome: CallOutcome = self._recv(EngineState.CALLING, timeout)
        if outcome.failure is not None:
            raise outcome.failure
        return outcome.results

    def close(self, grace: float | None = None) -> None:
        """Close every environment and give everything back. Idempotent, and bounded in time.

        Args:
            grace: Seconds that environments have to close; None for ``close_timeout``.
        """
        if self._gone or self.state is EngineState.FOREIGN:
            return
        self.state = EngineState.CLOSED
        self._riders = None
        try:
            self._close(grace)
        except Exception:
            self._gone = True
            raise
        # After an interrupt the next call goes on with it.
        self._gone = True

    @abstractmethod
    def _start_reset(self, reset: Reset, deadline: float | None) -> None: ...

    @abstractmethod
    def _finish_reset(self, deadline: float | None, seconds: float | None) -> ResetResult: ...

    @abstractmethod
    def _start_step(self, array: Any, code: int, objects: list[Any], deadline: float | None) -> None: ...

    @abstractmethod
    def _finish_step(self, deadline: float | None, seconds: float | None) -> StepResult: ...

    @abstractmethod
    def _start_some(self, array: Any, code: int, objects: list[Any], env_ids: Sequence[int]) -> None: ...

    @abstractmethod
    def _finish_some(self, least: int, deadline: float | None, seconds: float | None) -> SomeResult: ...

    @abstractmethod
    def _settle_some(self) -> None:
        """Finish what is sent, and keep it."""

    @abstractmethod
    def _forget_some(self) -> None: ...

    @abstractmethod
    def _start_call(self, call: Call) -> None: ...

    @abstractmethod
    def _finish_call(self, deadline: float | None, seconds: float | None) -> CallOutcome: ...

    @abstractmethod
    def _close(self, grace: float | None) -> None: ...

    def _drop_pending(self) -> None:
        self._received = None
        self._sent.clear()
        self._forget_some()

    def _recv(self, state: EngineState, timeout: float | None) -> Any:
        if self.state is not state:
            self._check_usable(f"{state.value}()")
            raise CallError(f"no {state.value} is pending: send one first")
        result = self._finish_pending(timeout)
        self._received = None
        self.state = EngineState.IDLE
        return result

    def _finish_pending(self, timeout: float | None) -> Any:
        if self._received is None:
            seconds = self._limits[self.state] if timeout is None else timeout
            deadline = deadline_after(seconds)
            if self.state is EngineState.STEPPING:
                self._received = self._finish_step(deadline, seconds)
            elif self.state is EngineState.RESETTING:
                self._received = self._finish_reset(deadline, seconds)
            else:
                self._received = self._finish_call(deadline, seconds)
        return self._received

    def _check_idle(self, wanted: EngineState) -> None:
        if self.state is EngineState.IDLE:
            return
        self._check_usable(f"{wanted.value}()")
        raise CallError(
            f"a {self.state.value} is pending already: receive it before sending "
            + ("the next" if wanted is self.state else f"a {wanted.value}")
        )

    def _check_usable(self, what: str) -> None:
        if self.state is EngineState.BROKEN:
            raise BrokenError(f"{what} is not possible: {self._why_broken}. Call close(), and make new ones")
        if self.state is EngineState.CLOSED:
            raise ClosedError(f"{what} is not possible: the environments have been closed")
        if self.state is EngineState.FOREIGN:
            raise CallError(
                f"{what} is not possible in this process ({os.getpid()}), a forked child of the one that made these "
                "environments: make others here"
            )
