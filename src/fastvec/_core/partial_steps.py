"""Steps of some environments, and the first of them to be ready.

Each worker still has one command at a time. What is sent for an environment whose worker steps others waits here, and
follows when that one has replied::

    worker 0   envs 0 1      ──step 0 1──▶ ready 0 1
    worker 1   envs 2 3      ──step 2────────▶ ready 2 ──step 3──▶ ready 3      3 was sent while 2 was stepped

So environments are ready worker by worker, and one by one where each has a worker. Every receipt looks at all workers,
hands out all that is ready, in the order in which it came, and has workers go on with what waits. That is why none is
starved: what is ready is in the next batch, however fast the others are.
"""

from __future__ import annotations

import pickle
from abc import ABC
from collections.abc import Sequence
from typing import Any

from fastvec._core.channel import Gone
from fastvec._core.handle import WorkerHandle, death_of
from fastvec._core.protocol import NO_NEWS, Opcode, Status
from fastvec._core.replies import WorkerLost
from fastvec._core.results import Part, SomeResult
from fastvec._core.state import EngineState
from fastvec._core.succession import Succession
from fastvec.errors import WorkerTimeoutError

__all__ = ["PartialSteps"]


class PartialSteps(Succession, ABC):
    """Workers of which each may be at another step."""

    # By the slot of a worker: what waits for it, by row, and what it steps.
    _waiting: dict[int, dict[int, Any]]
    _stepping: dict[int, list[int]]
    # What has come and is not handed out, by worker and command, the oldest first.
    _parts: dict[tuple[int, int], Part]
    # The dtype of the actions that lie in the block.
    _code = 0

    def _forget_some(self) -> None:
        self._waiting, self._stepping, self._parts = {}, {}, {}

    def _start_some(self, array: Any, code: int, objects: list[Any], env_ids: Sequence[int]) -> None:
        if self.state is EngineState.IDLE:
            self._settle("step", None)
            self._banks.advance(keep=True)
            self._replies.expect([])
            self._opcode, self._news = Opcode.STEP, [NO_NEWS] * self._views.layout.num_workers
        # An interrupt in the midst of this would leave some of these environments with an action and some without.
        self.state, self._why_broken = EngineState.BROKEN, "sending step to the workers was interrupted"
        # A copy, as some of it may have to wait.
        actions = objects if array is None else list(array.copy())
        for env_id, action in zip(env_ids, actions, strict=True):
            worker = self._owners[env_id]
            self._waiting.setdefault(worker.slot, {})[env_id - worker.env_ids.start] = action
        # All actions in the block have one dtype, as their places depend on it.
        in_block = array is not None and (code == self._code or not self._stepping)
        if in_block:
            self._code = code
        for worker in self._working:
            self._step_next(worker, in_block=in_block)

    def _step_next(self, worker: WorkerHandle, *, in_block: bool = False) -> None:
        """Have a worker step what waits for it, unless it is busy."""
        slot = worker.slot
        actions = self._waiting.get(slot)
        if not actions or slot in self._stepping:
            return
        self._stepping[slot] = sorted(actions)
        del self._waiting[slot]
        self._replies.add(worker)
        if in_block and len(actions) == len(worker.env_ids):
            places = self._views.actions(self._code)
            for row, action in actions.items():
                places[worker.env_ids.start + row] = action
            worker.command(Opcode.STEP, self._code, self._banks.current)
            return
        message = self._dumps(actions)
        try:
            worker.tell(Opcode.STEP_SOME, message, None, bank=self._banks.current)
        except Gone:
            self._lose(worker, death_of(worker, "step"))

    def _receive(self, deadline: float | None, seconds: float | None) -> None:
        """Wait for one of the workers that step, and have it go on."""
        try:
            worker, status, payload = self._replies.next("step", deadline, seconds)
        except WorkerLost as lost:
            self._lose(lost.worker, lost.error)
            return
        news = NO_NEWS
        if payload:
            value = pickle.loads(payload)
            if status == Status.FAILED:
                self._lose(worker, value.exception())
            self._batch.learn(worker.slot, value)
            news = value
        state, self.state = self.state, EngineState.BROKEN
        self._why_broken = "receiving a step was interrupted"
        self._parts[worker.slot, worker.sequence] = Part(worker.slot, self._stepping.pop(worker.slot), news)
        self._replies.done(worker)
        self._step_next(worker)
        self.state = state

    def _look(self) -> None:
        """Receive what is there. The word is a hint: what it says of is read after the bell has been taken."""
        for worker in list(self._replies.missing.values()):
            if worker.reply[0] == worker.sequence:
                self._receive(None, None)

    def _finish_some(self, least: int, deadline: float | None, seconds: float | None) -> SomeResult:
        self._look()
        try:
            while sum(len(part.rows) for part in self._parts.values()) < least:
                self._receive(deadline, seconds)
        except WorkerTimeoutError as late:
            ready = sum(len(part.rows) for part in self._parts.values())
            raise WorkerTimeoutError(
                f"{ready} of at least {least} environments are ready; those that are can be received with a lower "
                f"min_envs: {late}",
                env_indices=late.env_indices,
            ) from None
        parts = dict(self._parts)
        try:
            result = self._batch.some(list(parts.values()))
        except Exception as error:
            self._break_unreadable(error)
        for key in parts:
            del self._parts[key]
        return result

    def _settle_some(self) -> None:
        while self._stepping:
            self._receive(None, None)
