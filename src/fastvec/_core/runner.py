"""Stepping a slice of environments into arrays: the one implementation, for workers and in-process.

An :class:`EnvRunner` owns its environments and writes rows of the arrays that it is given. It is
the only code that resets an environment whose episode has ended. What the arrays do not hold it
returns as :class:`~fastvec._core.protocol.StepNews`. It knows of no process and no other slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fastvec._core.building import blame
from fastvec._core.config import AutoresetMode
from fastvec._core.failures import EnvFailure
from fastvec._core.infos import Freeze, InfoWriter
from fastvec._core.layout import BatchViews, StepFlag
from fastvec._core.nans import NanGuard
from fastvec._core.observations import ObservationWriter
from fastvec._core.options import ResetOptions
from fastvec._core.protocol import NO_NEWS, CallRequest, StepNews
from fastvec._core.reset_options import AutomaticOptions
from fastvec._core.returns import parts_of_reset, wrong_step
from fastvec._core.riders import LookUp, RiderWriter
from fastvec._core.roster import Roster
from fastvec._core.spares import Spares
from fastvec._core.structure import EnvDescription, leaves, lookup
from fastvec.errors import InfoError, ObservationError, RewardError

__all__ = ["EnvRunner"]

# As plain integers: arithmetic of enum members would cost a microsecond an environment.
_TERMINATED, _TRUNCATED = StepFlag.TERMINATED.value, StepFlag.TRUNCATED.value
_TRUNCATED_IS_NUMPY, _FINAL_IN_BLOCK = StepFlag.TRUNCATED_IS_NUMPY.value, StepFlag.FINAL_IN_BLOCK.value


def _nothing(ended: Any, ready: Any) -> None:
    pass


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
        with_step: Methods and attributes whose values ride along with each step and reset.
        look_up: Finds them.
        spares: Environments beside, which it also owns and closes, or none.
        hand_over: See :class:`~fastvec._core.spares.Spares`.
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
        with_step: Sequence[str] = (),
        look_up: LookUp = getattr,
        spares: Sequence[Any] = (),
        hand_over: Callable[[Any, Any], None] = _nothing,
        succeeds: bool = False,
    ) -> None:
        self.envs, self._at, self._mode = envs, at, autoreset_mode
        self._options = AutomaticOptions(reset_options, env_ids)
        self._env_ids = env_ids
        self._description, self._tree = description, description.observation
        self._freeze = freeze
        rows = slice(env_ids.start, env_ids.stop)
        self._rewards = views.rewards[rows].data
        self._flags = views.flags[rows].data
        self._infos = InfoWriter(views.info_codes[rows], views.info_cells[rows], freeze)
        banks = [[a if a is None else a[rows] for a in bank] for bank in views.banks]
        writer = ObservationWriter(self._tree, banks[0], unsafe_casts=unsafe_casts)
        guard = NanGuard(env_ids, list(leaves(self._tree)), banks[0], views.rewards[rows]) if check_nan else None
        self._banks = [(one := writer.twin(bank), one.writer(), guard and guard.twin(bank)) for bank in banks]
        self._finals = [a if a is None else a[rows] for a in views.finals]
        self._roster = Roster(envs, env_ids, self._options, guard, succeeds=succeeds)
        self.spares = Spares(spares, len(envs), hand_over, at) if spares else None
        self._riders: RiderWriter | None = None
        if with_step:
            codes, cells = views.rider_codes[rows], views.rider_cells[rows]
            self._riders = RiderWriter(with_step, look_up, env_ids, codes, cells, freeze, at)
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
        roster = self._roster
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
            roster.ended.discard(row)
        if anew is not None and self._mode is AutoresetMode.NEXT_STEP:
            roster.ended.update(rows)
        if held:
            roster.hold(rows)
        elif roster.held:
            roster.release(roster.held.intersection(rows))
        if self.spares is not None:
            self.spares.rows_were_reset(rows, arguments)
        return self._news("reset", NO_NEWS._replace(reset_infos=reset_infos), [(row, self.envs[row]) for row in rows])

    def step(self, actions: Sequence[Any] | Mapping[int, Any]) -> StepNews:
        """Step every environment with its action, and reset those whose episode ends, now or at the next step.

        Args:
            actions: One a row, which the environments may keep.
        """
        roster = self._roster
        ended, same_step = roster.ended, self._mode is AutoresetMode.SAME_STEP
        rests: dict[int, Any] = {}
        reset_infos: dict[int, Any] = {}
        finals: dict[int, Any] = {}
        rewards, flags, write, write_info = self._rewards, self._flags, self._write, self._infos.write
        left: list[int] = []
        nans, at = self._nans, self._at
        row = 0
        env: Any
        try:
            for row, env in roster.stepped:
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
                        if roster.retiring:
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
        if roster.held:
            roster.release(roster.held)
        parcels = roster.leave(left) if left else {}
        return self._news("step", StepNews([], rests, reset_infos, finals, {}, parcels, {}, []), roster.stepped)

    def retire(self, rows: Iterable[int]) -> StepNews:
        """Leave some environments at once, and those that wait for a reset; from now on reset none whose episode ends.

        Args:
            rows: To be left at once.
        """
        self._roster.retiring = True
        return self._news("retire", NO_NEWS._replace(left=self._roster.leave(sorted({*rows, *self._roster.ended}))))

    def adopt(self, left: Mapping[int, bytes], at_once: bool) -> StepNews:
        """Go on with environments that another runner has left; see :class:`AdoptRequest`."""
        reset_infos: dict[int, Any] = {}
        for row, parcel in left.items():
            self._at[0] = row + 1
            with blame(self._env_ids[row], "reset"):
                self._roster.unpack(row, parcel)
                if at_once:
                    self._write(row, self._take_reset(row, self._reset_again(row, self.envs[row]), reset_infos))
                    if self._nans is not None:
                        self._nans.check_first(row)
        self._roster.take(left)
        envs = [(row, self.envs[row]) for row in left] if at_once else []
        return self._news("reset", NO_NEWS._replace(reset_infos=reset_infos), envs)

    def call(self, request: CallRequest) -> list[Any]:
        """``function(env, *args, **kwargs)`` of some environments, in order."""
        results = []
        for index, row in enumerate(request.rows):
            more = request.each[index] if request.each is not None else ()
            self._at[0] = row + 1
            with blame(self._env_ids[row], request.name):
                results.append(request.function(self.envs[row], *request.args, *more, **request.kwargs))
        if request.lasting and self.spares is not None:
            for spare in self.spares.change():
                with blame(self._env_ids[spare.row], request.name):
                    request.function(spare.env, *request.args, **request.kwargs)
        return results

    def close(self) -> None:
        """Close every environment, also where an earlier one fails to; then raise the first failure."""
        failure: EnvFailure | None = None
        spares = [(self._env_ids[spare.row], spare.env) for spare in self.spares or ()]
        for index, env in [*zip(self._env_ids, self.envs, strict=True), *spares]:
            try:
                with blame(index, "close"):
                    env.close()
            except EnvFailure as error:
                failure = failure or error
        self.envs, self.spares = [], None
        if failure is not None:
            raise failure

    def _reset_again(self, row: int, env: Any) -> Any:
        """Reset an environment whose episode has ended."""
        if self.spares is not None:
            return self._replace(row, env, self.spares)
        if self._nans is not None:
            self._nans.begins_anew(row)
        return env.reset(**self._options.next(row))

    def _replace(self, row: int, env: Any, spares: Spares) -> Any:
        """Have a spare environment in the place of one whose episode has ended; what its reset has returned."""
        spare = spares.take_turn(env, row, (None, 0) if self._nans is None else self._nans.seeds[row])
        if self._nans is not None:
            self._nans.seeds[row] = spare.origin
            self._nans.begins_anew(row)
        self._roster.exchange(row, spare.env)
        return spare.result

    def _reset_late(self, row: int, env: Any) -> Any:
        """A step that resets: no reward, no flags, and the info of the reset in the place of the step's."""
        observation, info = parts_of_reset(self._reset_again(row, env))
        self._roster.ended.discard(row)
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

    def _news(self, command: str, said: StepNews, envs: Iterable[tuple[int, Any]] = ()) -> StepNews:
        """What is to be said of a command: besides what its caller knows, new schemas and the leaves without arrays.

        Args:
            command: Which one.
            said: What its caller knows.
            envs: By row, the environments whose observations it has written: what rides along is taken of them.
        """
        if self._riders is not None:
            riders, rider_schemas = self._riders.take(envs)
            said = said._replace(riders=riders, rider_schemas=rider_schemas)
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
