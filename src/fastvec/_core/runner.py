"""Stepping a slice of environments into arrays: the one implementation, for workers and in-process.

An :class:`EnvRunner` owns its environments and writes rows of the arrays that it is given. It is
the only code that resets an environment whose episode has ended. What the arrays do not hold it
returns as :class:`~fastvec._core.protocol.StepNews`. It knows of no process and no other slice.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fastvec._core.building import blame
from fastvec._core.config import AutoresetMode
from fastvec._core.failures import EnvFailure
from fastvec._core.infos import Freeze, InfoWriter
from fastvec._core.layout import BatchViews, StepFlag
from fastvec._core.moving import (
    Parcel,
    generators_to_come,
    global_generators,
    restore_global_generators,
    take_along,
    take_over,
)
from fastvec._core.nans import NanGuard
from fastvec._core.observations import ObservationWriter
from fastvec._core.options import ResetOptions
from fastvec._core.pickles import dumps
from fastvec._core.protocol import NO_NEWS, CallRequest, StepNews
from fastvec._core.reset_options import AutomaticOptions
from fastvec._core.returns import parts_of_reset, wrong_step
from fastvec._core.structure import EnvDescription, leaves, lookup
from fastvec.errors import InfoError, ObservationError, RewardError

__all__ = ["EnvRunner"]

# As plain integers: arithmetic of enum members would cost a microsecond an environment.
_TERMINATED, _TRUNCATED = StepFlag.TERMINATED.value, StepFlag.TRUNCATED.value
_TRUNCATED_IS_NUMPY, _FINAL_IN_BLOCK = StepFlag.TRUNCATED_IS_NUMPY.value, StepFlag.FINAL_IN_BLOCK.value


class EnvRunner:
    """Steps environments ``env_ids`` of a batch.

    Args:
        envs: The environments; the runner owns them now and closes them.
        env_ids: Their rows in the arrays, contiguous.
        description: What they declare.
        views: The arrays of the whole batch.
        at: One integer, set to 1 + the row of the environment whose code is going to run.
        freeze: See :class:`~fastvec._core.infos.InfoWriter`.
        unsafe_casts: See :class:`~fastvec._core.observations.ObservationWriter`.
        check_nan: Whether to look for NaN and infinity.
        reset_options: With which options to reset an environment whose episode has ended.
        autoreset_mode: When to.
        succeeds: Whether it begins without environments to step, and :meth:`adopt` gives it some.
    """

    def __init__(
        self,
        envs: list[Any],
        env_ids: range,
        description: EnvDescription,
        views: BatchViews,
        at: memoryview,
        *,
        freeze: Freeze,
        unsafe_casts: bool,
        check_nan: bool = False,
        reset_options: ResetOptions = None,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        succeeds: bool = False,
    ) -> None:
        self.envs, self._at = envs, at
        # What each step steps: without those that another worker steps yet, or already.
        self._stepped: list[tuple[int, Any]] = [] if succeeds else list(enumerate(envs))
        self._retiring, self._mode = False, autoreset_mode
        # Those that the next step leaves out.
        self._held: set[int] = set()
        self._options = AutomaticOptions(reset_options, env_ids)
        # The rows that the next step resets, in NEXT_STEP mode.
        self._ended: set[int] = set()
        self._env_ids = env_ids
        self._tree, self._freeze = description.observation, freeze
        rows = slice(env_ids.start, env_ids.stop)
        self._rewards = views.rewards[rows].data
        self._flags = views.flags[rows].data
        self._infos = InfoWriter(views.info_codes[rows], views.info_cells[rows], freeze)
        banks = [[a if a is None else a[rows] for a in bank] for bank in views.banks]
        writer = ObservationWriter(self._tree, banks[0], unsafe_casts=unsafe_casts)
        guard = NanGuard(env_ids, list(leaves(self._tree)), banks[0], views.rewards[rows]) if check_nan else None
        self._banks = [(one := writer.twin(bank), one.writer(), guard and guard.twin(bank)) for bank in banks]
        self._finals = [a if a is None else a[rows] for a in views.finals]
        self.use(0)

    def use(self, bank: int) -> None:
        """Write observations to this bank from now on."""
        self.bank = bank
        self._observations, self._write, self._nans = self._banks[bank]

    def reset(
        self,
        rows: Sequence[int],
        arguments: Sequence[Mapping[str, Any]],
        anew: Sequence[tuple[Any, int]] | None = None,
        held: bool = False,
    ) -> StepNews:
        """Reset some environments, each with its keyword arguments; see :class:`ResetRequest`."""
        reset_infos: dict[int, Any] = {}
        for index, (row, keywords) in enumerate(zip(rows, arguments, strict=True)):
            self._at[0] = row + 1
            with blame(self._env_ids[row], "reset"):
                if anew is None:
                    self._options.set(row, keywords.get("options"), 0)
                else:
                    self._options.set(row, *anew[index])
                    # Where another step resets them once more, that is the one that is seen.
                    seen = self._mode is not AutoresetMode.NEXT_STEP
                    keywords = {**keywords, **self._options.next(row, count=seen)}
                self._write(row, self._take_reset(row, self.envs[row].reset(**keywords), reset_infos))
                if self._nans is not None:
                    self._nans.after_reset(row, keywords)
            self._ended.discard(row)
        if anew is not None and self._mode is AutoresetMode.NEXT_STEP:
            self._ended.update(rows)
        if held:
            self._held.update(rows)
            self._set_stepped({row for row, _ in self._stepped}.difference(rows))
        elif self._held:
            self._release(self._held.intersection(rows))
        return self._news("reset", NO_NEWS._replace(reset_infos=reset_infos))

    def step(self, actions: Sequence[Any] | Mapping[int, Any]) -> StepNews:
        """Step every environment with its action, and reset those whose episode ends, now or at the next step.

        Args:
            actions: One a row, which the environments may keep.
        """
        ended, same_step = self._ended, self._mode is AutoresetMode.SAME_STEP
        rests: dict[int, Any] = {}
        reset_infos: dict[int, Any] = {}
        finals: dict[int, Any] = {}
        rewards, flags, write, write_info = self._rewards, self._flags, self._write, self._infos.write
        left: list[int] = []
        nans, at = self._nans, self._at
        row = 0
        env: Any
        try:
            for row, env in self._stepped:
                at[0] = row + 1
                if ended and row in ended:
                    rest = self._reset_late(row, env)
                    if rest is not None:
                        rests[row] = rest
                    continue
                result = env.step(actions[row])
                try:
                    observation, reward, terminated, truncated, info = result
                except (TypeError, ValueError):
                    raise wrong_step(result) from None
                try:
                    rewards[row] = reward
                except (TypeError, ValueError):
                    raise RewardError(
                        f"a reward must be a real number, got {reward!r} of type {type(reward).__name__}"
                    ) from None
                flag = _TRUNCATED if truncated else 0
                if type(truncated) is np.bool_:
                    flag |= _TRUNCATED_IS_NUMPY
                # Before a reset, which may change the very dict and arrays that the step returned.
                rest = write_info(row, info)
                if rest is not None:
                    rests[row] = rest
                if terminated or truncated:
                    if terminated:
                        flag |= _TERMINATED
                    if same_step:
                        if nans is not None:
                            nans.before_reset(row, lookup(observation, self._tree, "observation"), actions[row])
                        if self._keep_final(row, observation, finals):
                            flag |= _FINAL_IN_BLOCK
                        if self._retiring:
                            flags[row] = flag
                            self._observations.forget(row)
                            left.append(row)
                            continue
                        observation = self._take_reset(row, self._reset_again(row, env), reset_infos)
                    elif self._mode is AutoresetMode.NEXT_STEP:
                        ended.add(row)
                flags[row] = flag
                write(row, observation)
            if nans is not None:
                wrong = nans.after_step()
                if wrong is not None:
                    row = wrong
                    nans.complain(row, actions[row])
        except BaseException as error:
            raise EnvFailure(self._env_ids[row], "step", error) from error
        if self._held:
            self._release(set(self._held))
        return self._news("step", StepNews([], rests, reset_infos, finals, {}, self._leave(left) if left else {}))

    def retire(self, rows: Iterable[int]) -> StepNews:
        """Leave some environments at once, and those that wait for a reset; from now on reset none whose episode ends.

        Args:
            rows: To be left at once.
        """
        self._retiring = True
        return self._news("retire", NO_NEWS._replace(left=self._leave(sorted({*rows, *self._ended}))))

    def adopt(self, left: Mapping[int, bytes], at_once: bool) -> StepNews:
        """Go on with environments that another runner has left; see :class:`AdoptRequest`."""
        reset_infos: dict[int, Any] = {}
        for row, parcel in left.items():
            self._at[0] = row + 1
            with blame(self._env_ids[row], "reset"):
                env = self.envs[row]
                self._unpack(row, env, pickle.loads(parcel))
                if at_once:
                    self._write(row, self._take_reset(row, self._reset_again(row, env), reset_infos))
                    if self._nans is not None:
                        self._nans.check_first(row)
        self._set_stepped({row for row, _ in self._stepped} | left.keys())
        return self._news("reset", NO_NEWS._replace(reset_infos=reset_infos))

    def _leave(self, rows: Iterable[int]) -> dict[int, bytes]:
        """Step some environments no more; what their successors need."""
        rows = list(rows)
        is_first = len(self._stepped) == len(self.envs)
        self._set_stepped({row for row, _ in self._stepped}.difference(rows))
        generators = global_generators() if not self._stepped else generators_to_come() if is_first else None
        left = {}
        for row in rows:
            with blame(self._env_ids[row], "moving to another worker"):
                seed = None if self._nans is None else self._nans.seeds[row]
                options, resets, ended = self._options.last[row], self._options.counts[row], row in self._ended
                left[row] = dumps(Parcel(take_along(self.envs[row]), generators, options, resets, ended, seed))
            generators = None
            self._ended.discard(row)
        return left

    def _unpack(self, row: int, env: Any, parcel: Parcel) -> None:
        take_over(env, parcel.attributes)
        if parcel.generators is not None:
            restore_global_generators(parcel.generators)
        self._options.set(row, parcel.options, parcel.resets)
        if parcel.ended:
            self._ended.add(row)
        if self._nans is not None:
            self._nans.seeds[row] = parcel.seed

    def _release(self, rows: set[int]) -> None:
        self._held -= rows
        self._set_stepped({row for row, _ in self._stepped} | rows)

    def _set_stepped(self, rows: Iterable[int]) -> None:
        self._stepped = [(row, self.envs[row]) for row in sorted(rows)]
        if self._nans is not None:
            self._nans.watch(rows)

    def call(self, request: CallRequest) -> list[Any]:
        """``function(env, *args, **kwargs)`` of some environments, in order."""
        results = []
        for index, row in enumerate(request.rows):
            more = request.each[index] if request.each is not None else ()
            self._at[0] = row + 1
            with blame(self._env_ids[row], request.name):
                results.append(request.function(self.envs[row], *request.args, *more, **request.kwargs))
        return results

    def close(self) -> None:
        """Close every environment, also where an earlier one fails to; then raise the first failure."""
        failure: EnvFailure | None = None
        for index, env in zip(self._env_ids, self.envs, strict=True):
            try:
                with blame(index, "close"):
                    env.close()
            except EnvFailure as error:
                failure = failure or error
        self.envs = []
        if failure is not None:
            raise failure

    def _reset_again(self, row: int, env: Any) -> Any:
        """Reset an environment whose episode has ended."""
        if self._nans is not None:
            self._nans.begins_anew(row)
        return env.reset(**self._options.next(row))

    def _reset_late(self, row: int, env: Any) -> Any:
        """A step that resets: no reward, no flags, and the info of the reset in the place of the step's."""
        observation, info = parts_of_reset(self._reset_again(row, env))
        self._ended.discard(row)
        self._rewards[row] = 0
        self._flags[row] = 0
        rest = self._infos.write(row, info)
        self._write(row, observation)
        return rest

    def _take_reset(self, row: int, result: Any, reset_infos: dict[int, Any]) -> Any:
        observation, info = parts_of_reset(result)
        if info:
            reset_infos[row] = self._frozen(info, "the info of reset()", InfoError)
        return observation

    def _keep_final(self, row: int, observation: Any, finals: dict[int, Any]) -> bool:
        """Keep the last observation of an episode; whether the block holds it."""
        if self._observations.exact(observation):
            for array, value in zip(self._finals, lookup(observation, self._tree, "observation"), strict=True):
                assert array is not None
                array[row] = value
            return True
        # It must fit its space all the same, as the next learner will treat it like any other.
        self._write(row, observation)
        finals[row] = self._frozen(observation, "the final observation", ObservationError)
        return False

    def _news(self, command: str, said: StepNews) -> StepNews:
        """What is to be said of a command: besides what its caller knows, new schemas and the leaves without arrays."""
        objects = self._observations.objects
        schemas = self._infos.take_new()
        if not (objects or schemas or any(said)):
            return NO_NEWS
        frozen: dict[tuple[int, int], Any] = {}
        for (leaf, row), value in objects.items():
            with blame(self._env_ids[row], command):
                frozen[leaf, row] = self._frozen(value, "the observation", ObservationError)
        objects.clear()
        return said._replace(schemas=schemas, objects=frozen)

    def _frozen(self, value: Any, what: str, wrong: type[Exception]) -> Any:
        try:
            return self._freeze(value)
        except Exception as error:
            raise wrong(f"{what} cannot be sent to the parent process: {error}") from error
