"""The engine over worker processes.

:class:`ProcessEngine` says what a reset, a step and a call are to its workers: which command, to
whom, and what becomes of the replies. Who takes the place of whom it leaves to the
:class:`~fastvec._core.succession.Succession`, who is ready first to :mod:`fastvec._core.partial_steps`, what the arrays
mean to :mod:`fastvec._core.results`.
"""

from __future__ import annotations

import functools
import pickle
import weakref
from collections.abc import Callable
from typing import Any

from fastvec._core.bulk import close_all, pack
from fastvec._core.channel import deadline_after
from fastvec._core.config import AutoresetMode, EngineConfig
from fastvec._core.handle import WorkerHandle
from fastvec._core.lineage import close_in_children
from fastvec._core.partial_steps import PartialSteps
from fastvec._core.pool import WorkerPool
from fastvec._core.protocol import CallMessage, Opcode, ResetRequest, Status
from fastvec._core.replies import WorkerLost
from fastvec._core.results import ResetResult, StepResult
from fastvec._core.state import Call, CallOutcome, EngineState, Reset
from fastvec.errors import WorkerTimeoutError

__all__ = ["ProcessEngine"]


class ProcessEngine(PartialSteps):
    """Environments in worker processes.

    Args:
        config: Validated options.
        pool: The workers; this engine ends them.
    """

    def __init__(self, config: EngineConfig, pool: WorkerPool) -> None:
        super().__init__(config, pool)
        self._forget_some()
        # Whether workers may be followed by others.
        self._is_followed = config.restart or config.recycles
        # Of the reset that is pending: what each worker was sent, and whom it concerns.
        self._resets: dict[int, bytes] = {}
        self._chosen: list[int] = []
        # Of the call that is pending: where each worker's results belong, by slot; those that have come, and what was
        # raised, by worker.
        self._places: dict[int, list[int]] = {}
        self._outcome: list[Any] = []
        self._failures: dict[int, BaseException] = {}
        self._called = ""
        self._guard = _ForkGuard(self)
        # At interpreter exit, or when the last reference goes.
        self._finalizer = weakref.finalize(self, self._pool.stop)

    def _start_reset(self, reset: Reset, deadline: float | None) -> None:
        chosen = [i for i in range(self.num_envs) if reset.mask is None or reset.mask[i]]
        messages = {}
        for index, env_ids in enumerate(self._slices):
            its = [i for i in chosen if i in env_ids]
            if its:
                rows = [i - env_ids.start for i in its]
                messages[index] = self._dumps(ResetRequest(rows, [reset.arguments[i] for i in its]))
        self._settle("reset", deadline)
        if self._config.recycles:
            self._recycle()
        self._bring_over(chosen)
        for i in chosen:
            self._restarts.was_reset(i, reset.arguments[i])
        if self._config.recycles:
            self._recycling.count_resets(chosen)
        deadline = deadline_after(self._config.reset_timeout)  # successors had a time of their own
        self._resets, self._chosen = messages, chosen
        self._banks.advance(keep=reset.mask is not None)
        workers = [self._pool.workers[index] for index in messages]
        self._command(Opcode.RESET, "reset", workers, list(messages.values()), deadline)

    def _finish_reset(self, deadline: float | None, seconds: float | None) -> ResetResult:
        self._collect("reset", deadline, seconds)
        while self._lost:
            lost = list(self._lost)
            self._replace_lost()
            for index in lost:
                worker = self._pool.workers[index]
                news = self._ask(worker, Opcode.RESET, "reset", self._resets[index], self._config.reset_timeout)
                if news is not None:
                    self._news[worker.slot] = news
        for index, restart in list(self._untold.items()):
            restart.env_ids.difference_update(self._chosen)
            if not restart.env_ids:
                del self._untold[index]
        cut_off = [env_id for restart in self._untold.values() for env_id in restart.env_ids]
        if self._config.with_step and len(self._chosen) == self.num_envs:
            self._riders = functools.partial(self._batch.riders, self._news)
        result: ResetResult = self._read(self._batch.reset, self._news, cut_off)
        return result

    def _start_step(self, array: Any, code: int, objects: list[Any], deadline: float | None) -> None:
        messages = [] if array is not None else [self._dumps([objects[i] for i in ids]) for ids in self._slices]
        if not self._is_settled():
            self._settle("step", deadline)
        if self._config.recycles:
            self._recycle()
            deadline = deadline_after(self._config.step_timeout)  # successors had a time of their own
        self._banks.advance(keep=bool(self._untold))
        if array is not None:
            self._views.actions(code)[...] = array
            self._command(Opcode.STEP, "step", self._working, None, deadline, code)
        else:
            chosen = [messages[worker.index] for worker in self._working]
            self._command(Opcode.STEP_OBJECTS, "step", self._working, chosen, deadline)

    def _finish_step(self, deadline: float | None, seconds: float | None) -> StepResult:
        self._collect_step("step", deadline, seconds, held=False)
        if not self._is_followed:
            if self._config.with_step:
                self._riders = functools.partial(self._batch.riders, self._news)
            whole: StepResult = self._read(self._batch.step, self._news)
            return whole
        news, cut_off = list(self._news), {}
        with_finals = self._config.autoreset_mode is AutoresetMode.SAME_STEP
        for index, restart in self._untold.items():
            worker = self._pool.workers[index]
            cut_off.update(dict.fromkeys(restart.env_ids, restart.info))
            if with_finals:  # else the last observations are shown, and those of the resets are not
                rows = [env_id - worker.env_ids.start for env_id in restart.env_ids]
                news[worker.slot] = news[worker.slot].and_then(restart.news.of(rows))
        result: StepResult = self._read(self._batch.step, news, cut_off, with_finals)
        # Of environments that have been replaced not what belongs to a reset that is not shown.
        if self._config.with_step and not cut_off:
            self._riders = functools.partial(self._batch.riders, news)
        self._untold.clear()
        self._restarts.count_ends(result.flags)
        if self._config.recycles:
            self._change_hands()
            self._recycling.count_ends(result.flags)
        return result

    def _read(self, read: Callable[..., Any], *args: Any) -> Any:
        try:
            return read(*args)
        except Exception as error:
            self._break_unreadable(error)

    def _start_call(self, call: Call) -> None:
        self._settle(call.name, None)
        places: dict[WorkerHandle, list[int]] = {}
        for place, env_id in enumerate(call.env_ids):
            places.setdefault(self._owners[env_id], []).append(place)
        # Pickled before anything is sent, so that arguments which cannot be leave no worker waiting.
        owns = []
        for worker, its in places.items():
            rows = [call.env_ids[place] - worker.env_ids.start for place in its]
            each = None if call.each is None else [call.each[place] for place in its]
            owns.append(self._dumps((rows, each, call.lasting)))
        common, fds = pack((call.name, call.function, call.args, call.kwargs), self._dumps)
        try:
            messages = [pickle.dumps(CallMessage(common, own), pickle.HIGHEST_PROTOCOL) for own in owns]
            self._places = {worker.slot: its for worker, its in places.items()}
            self._called = call.name
            self._outcome, self._failures = [None] * len(call.env_ids), {}
            self._command(Opcode.CALL, call.name, list(places), messages, None, fds=[fds] * len(messages))
        finally:
            close_all(fds)

    def _finish_call(self, deadline: float | None, seconds: float | None) -> CallOutcome:
        if self._lost:  # in taking the command
            self._failures.update(self._lost)
        while self._replies.missing:
            failure: BaseException | None = None
            try:
                worker, status, payload = self._replies.next(self._called, deadline, seconds)
                value = pickle.loads(payload)
            except WorkerLost as lost:
                worker = lost.worker
                self._lose(worker, lost.error)
                failure = lost.error
            except WorkerTimeoutError:
                raise
            except Exception as error:
                failure = error
            else:
                if status == Status.FAILED:
                    failure = value.exception()
                else:
                    for place, result in zip(self._places[worker.slot], value, strict=True):
                        self._outcome[place] = result
            if failure is not None:
                self._failures[worker.index] = failure
            self._replies.done(worker)
        self._replace_lost()
        # Of several the first worker's, whoever was first to fail.
        first = min(self._failures, default=None)
        return CallOutcome(self._outcome, None if first is None else self._failures[first])

    def hand_over(self, messages: list[bytes], fds: list[tuple[int, ...]]) -> WorkerPool:
        """Have the workers serve splits from here on. This engine is closed then; its workers are not.

        Args:
            messages: For each worker, what its lanes are.
            fds: For each worker, the descriptors that go with it.
        """
        seconds = self._config.start_timeout
        deadline = deadline_after(seconds)
        self._settle("split", deadline)
        self._command(Opcode.SPLIT, "split", self._pool.workers, messages, deadline, fds=fds)
        self._collect("split", deadline, seconds)
        self._finalizer.detach()
        self.state, self._gone = EngineState.CLOSED, True
        return self._pool

    def _close(self, grace: float | None) -> None:
        self._pool.stop(grace)
        self._finalizer.detach()
        # Whatever refers to the block, so that its memory goes now.
        self._replies.close()
        self._owners, self._working, self._news, self._received = [], [], [], None
        del self._views, self._banks, self._batch

    def disown(self) -> None:
        """In a forked child: these environments are its parent's."""
        self.state = EngineState.FOREIGN


class _ForkGuard:
    """Tells an engine when it finds itself in a forked child; the engine keeps it alive."""

    def __init__(self, engine: ProcessEngine) -> None:
        self._engine = weakref.ref(engine)
        close_in_children(self)

    def close(self) -> None:
        engine = self._engine()
        if engine is not None:
            engine.disown()
