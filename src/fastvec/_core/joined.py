"""The whole of some splits, for who goes on using it: an engine that sends to all and merges what comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from fastvec._core.config import EngineConfig
from fastvec._core.engine import Engine
from fastvec._core.results import ResetResult, StepResult
from fastvec._core.state import PENDING, Call, CallOutcome, EngineState, Reset
from fastvec._core.structure import EnvDescription, build, lookup
from fastvec.errors import CallError, WorkerTimeoutError

__all__ = ["JoinedEngine"]


class JoinedEngine(Engine):
    """All environments of some engines, in one order.

    Resets and steps need splits with nothing pending, but :meth:`reset` drops it. A call receives what is pending in a
    split first, and keeps it there.

    Args:
        config: Of the whole.
        description: What the environments declare.
        splits: The engines.
        env_ids: The environments of each, as the whole numbers them.

    Attributes:
        splits: The engines.
    """

    def __init__(
        self,
        config: EngineConfig,
        description: EnvDescription,
        splits: Sequence[Engine],
        env_ids: Sequence[Sequence[int]],
    ) -> None:
        super().__init__(config)
        self.description = description
        self.splits = list(splits)
        self._env_ids = [np.array(ids) for ids in env_ids]
        self._places = [{env_id: place for place, env_id in enumerate(ids)} for ids in env_ids]
        # Whether what is pending in the splits was sent from here, and what has been received of it, by split.
        self._has_sent = False
        self._partial: dict[int, Any] = {}
        # Of the call under way: the places of each split's results.
        self._called: dict[int, list[int]] = {}

    def reset(self, arguments: Sequence[Mapping[str, Any]]) -> ResetResult:
        """See :meth:`Engine.reset`."""
        self.drop()
        return super().reset(arguments)

    def drop(self) -> None:
        """Give up what is pending, here or in a split."""
        super().drop()
        for split in self.splits:
            split.drop()

    def _check_idle(self, wanted: EngineState) -> None:
        self._check_usable(f"{wanted.value}()")
        super()._check_idle(wanted)

    def _check_usable(self, what: str) -> None:
        for split in self.splits:
            split._check_usable(what)
        super()._check_usable(what)

    def _start_reset(self, reset: Reset, deadline: float | None) -> None:
        self._begin()
        for split, env_ids in zip(self.splits, self._env_ids, strict=True):
            split.send_reset([reset.arguments[i] for i in env_ids], None if reset.mask is None else reset.mask[env_ids])

    def _finish_reset(self, deadline: float | None, seconds: float | None) -> ResetResult:
        results: list[ResetResult] = self._gather(lambda split, timeout: split.recv_reset(timeout), deadline, seconds)
        return ResetResult(
            self._merged([result.observations for result in results]), self._in_order([one.infos for one in results])
        )

    def _start_step(self, array: Any, code: int, objects: list[Any], deadline: float | None) -> None:
        self._begin()
        for split, env_ids in zip(self.splits, self._env_ids, strict=True):
            split.send([objects[i] for i in env_ids] if array is None else array[env_ids])

    def _finish_step(self, deadline: float | None, seconds: float | None) -> StepResult:
        results: list[StepResult] = self._gather(lambda split, timeout: split.recv(timeout), deadline, seconds)
        rewards, flags = np.empty(self.num_envs, np.float64), np.empty(self.num_envs, np.uint8)
        finals: dict[int, Any] = {}
        reset_infos: dict[int, Any] = {}
        for result, env_ids in zip(results, self._env_ids, strict=True):
            rewards[env_ids] = result.rewards
            flags[env_ids] = np.frombuffer(result.flags, np.uint8)
            finals.update((int(env_ids[i]), value) for i, value in result.finals.items())
            reset_infos.update((int(env_ids[i]), value) for i, value in result.reset_infos.items())
        return StepResult(
            observations=self._merged([result.observations for result in results]),
            rewards=rewards,
            flags=flags.tobytes(),
            infos=self._in_order(
                [_as_dicts(result.infos, len(ids)) for result, ids in zip(results, self._env_ids, strict=True)]
            ),
            finals=dict(sorted(finals.items())),
            reset_infos=dict(sorted(reset_infos.items())),
        )

    def _start_some(self, array: Any, code: int, objects: list[Any], env_ids: Sequence[int]) -> None:
        raise CallError("steps of some environments are not possible with the whole of splits: send them to a split")

    def _finish_some(self, least: int, deadline: float | None, seconds: float | None) -> NoReturn:
        raise AssertionError("nothing has been sent")

    def _settle_some(self) -> None:
        """There are none."""

    def _forget_some(self) -> None:
        """There are none."""

    def _start_call(self, call: Call) -> None:
        if self._has_sent:
            self._begin()
        self._called.clear()
        self._partial.clear()
        for number, (split, places) in enumerate(zip(self.splits, self._places, strict=True)):
            its = [place for place, env_id in enumerate(call.env_ids) if env_id in places]
            if not its:
                continue
            self._called[number] = its
            env_ids = [places[call.env_ids[place]] for place in its]
            each = None if call.each is None else [call.each[place] for place in its]
            arguments: dict[str, Any] = {"env_ids": env_ids, "kwargs": call.kwargs, "each": each}
            if split.state is EngineState.IDLE:
                self._has_sent = True
                split.send_call(call.name, call.function, *call.args, **arguments)
            else:  # in passing
                try:
                    results = split.call(call.name, call.function, *call.args, **arguments)
                    self._partial[number] = CallOutcome(results, None)
                except Exception as error:
                    self._partial[number] = CallOutcome([], error)

    def _finish_call(self, deadline: float | None, seconds: float | None) -> CallOutcome:
        def receive(split: Engine, timeout: float | None) -> CallOutcome:
            try:
                return CallOutcome(split.recv_call(timeout), None)
            except Exception as error:
                if split.state is EngineState.CALLING:
                    raise
                return CallOutcome([], error)

        outcomes = self._gather(receive, deadline, seconds, list(self._called))
        results: list[Any] = [None] * sum(map(len, self._called.values()))
        for places, outcome in zip(self._called.values(), outcomes, strict=True):
            if outcome.failure is not None:
                return CallOutcome([], outcome.failure)
            for place, result in zip(places, outcome.results, strict=True):
                results[place] = result
        return CallOutcome(results, None)

    def _close(self, grace: float | None) -> None:
        failure: Exception | None = None
        for split in self.splits:
            try:
                split.close(grace)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _begin(self) -> None:
        """Before something is sent to all splits."""
        if self._has_sent:
            for split in self.splits:
                split.drop()
        for number, split in enumerate(self.splits):
            if split.state in PENDING:
                raise CallError(
                    f"a {split.state.value} of split {number} is pending: receive it before using the whole"
                )
        self._partial.clear()
        self._has_sent = True

    def _gather(
        self,
        receive: Callable[[Engine, float | None], Any],
        deadline: float | None,
        seconds: float | None,
        numbers: Sequence[int] | None = None,
    ) -> list[Any]:
        """What some splits, or all, have for this engine; can be called again to go on with it."""
        numbers = range(len(self.splits)) if numbers is None else numbers
        for number in numbers:
            if number not in self._partial:
                timeout = seconds if deadline is None or not self._partial else max(0.0, deadline - time.monotonic())
                try:
                    self._partial[number] = receive(self.splits[number], timeout)
                except WorkerTimeoutError as late:
                    env_indices = tuple(int(self._env_ids[number][i]) for i in late.env_indices)
                    raise WorkerTimeoutError(f"split {number}: {late}", env_indices=env_indices) from None
        results = [self._partial[number] for number in numbers]
        self._partial.clear()
        self._has_sent = False
        return results

    def _merged(self, observations: Sequence[Any]) -> Any:
        tree = self.description.observation
        merged = []
        for arrays in zip(*(lookup(one, tree, "observations") for one in observations), strict=True):
            whole = np.empty((self.num_envs, *arrays[0].shape[1:]), arrays[0].dtype)
            for env_ids, array in zip(self._env_ids, arrays, strict=True):
                whole[env_ids] = array
            merged.append(whole)
        return build(tree, iter(merged))

    def _in_order(self, parts: Sequence[Sequence[Any]]) -> list[Any]:
        whole: list[Any] = [None] * self.num_envs
        for env_ids, part in zip(self._env_ids, parts, strict=True):
            for env_id, one in zip(env_ids, part, strict=True):
                whole[env_id] = one
        return whole


def _as_dicts(infos: Any, count: int) -> Any:
    """Infos one by one, also where they came as columns."""
    if not isinstance(infos, dict):
        return infos
    return [{key: column[row] for key, column in infos.items()} for row in range(count)]
