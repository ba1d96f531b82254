"""What has to come back: the serial engine, and a model of what `on_failure="restart"` shows.

The serial engine is the one that `num_workers=0` gives. It never fails, so what a restart does to a run has to be
done to it by hand, and :class:`Oracle` does it in terms of environments only, from what the documentation promises:

- The environments of the lost worker are built again, and each is reset with a seed that follows from the last one
  that its user gave: the n-th restart since then gets the first word of `SeedSequence([seed, n])`.
- The next step is not theirs. It says of each that its episode was truncated, without a reward, with
  `worker_restarted` as all of its info and the last observation that was shown as the last one of the episode.
- From then on the new environments go on like any others.

For that, an :class:`Understudy` stands in the place of each such environment for one step, in which it plays the
part of an environment whose episode is truncated. What a truncation looks like in each autoreset mode and face, the
serial engine and the face then show by themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from soak.compare import Like
from soak.faults import Fault


class Understudy:
    """In the place of an environment that was built again, until a step has told so.

    Args:
        oracle: Whose.
        row: The environment's index.
        env: The new environment.
        last: The last observation that was shown of the old one.
        info: What the step has to tell.
    """

    def __init__(self, oracle: Oracle, row: int, env: Any, last: Any, info: dict[str, Any]) -> None:
        self.oracle, self.row, self.env, self.last, self.info = oracle, row, env, last, info
        self.first: Any = None
        self.options: Any = None
        self.told = False

    def reset(self, **keywords: Any) -> Any:
        """Of the new environment; the one that belongs to the truncation has taken place before."""
        runner = self.oracle.runner
        if self.told:
            runner._options[self.row], runner._resets[self.row] = self.options, 0
            return self.first
        self.first = copy.deepcopy(self.env.reset(**keywords))
        self.options = keywords.get("options")
        return copy.deepcopy(self.first)

    def step(self, action: Any) -> Any:
        """The truncation. Then the new environment takes its place."""
        self.told = True
        self.oracle.runner.envs[self.row] = self.env
        return self.last, 0.0, False, True, {"worker_restarted": dict(self.info)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def get_wrapper_attr(self, name: str) -> Any:
        return self.env.get_wrapper_attr(name)

    def set_wrapper_attr(self, name: str, value: Any) -> Any:
        return self.env.set_wrapper_attr(name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "tag":  # the only attribute that is set from outside
            setattr(self.env, name, value)
        else:
            object.__setattr__(self, name, value)


class Oracle:
    """Follows the serial engine of a face, and takes environments from it.

    Args:
        face: With `num_workers=0`.
        make: A new environment, as the engine's adapter prepares it, for an index.
    """

    def __init__(self, face: Any, make: Callable[[int], Any]) -> None:
        self.engine, self.make = face._engine, make
        self.runner = self.engine._runner
        self.seeds: list[int | None] = [None] * face.num_envs
        self.counts = [0] * face.num_envs
        self.last: Any = None
        self.step_is_pending = False
        # What is lost in the reset that comes next.
        self.lost_in_reset: list[tuple[range, Sequence[Fault]]] = []
        engine = self.engine
        self._start_reset, self._finish_reset = engine._start_reset, engine._finish_reset
        self._start_step, self._finish_step = engine._start_step, engine._finish_step
        engine._start_reset, engine._finish_reset = self.start_reset, self.finish_reset
        engine._start_step, engine._finish_step = self.start_step, self.finish_step

    def lose(self, env_ids: range, faults: Sequence[Fault]) -> None:
        """A worker was lost: to the first fault, its replacements to the others, and then one lived."""
        resets = 1 + sum(fault.where != "constructor" for fault in faults[1:])
        info = {"reason": Like(faults[-1].reason), "exitcode": faults[-1].exitcode}
        for i in env_ids:
            self.counts[i] += resets
            last = copy.deepcopy(row_of(self.last, i))
            understudy = Understudy(self, i, self.make(i), last, info)
            understudy.reset(**self._seed(i))
            understudy.options = None
            self.runner.envs[i] = understudy
            # Its last episode had ended, perhaps, and was going to be reset.
            self.runner._ended.discard(i)
            # What `reset_options` went by is forgotten.
            self.runner._options[i], self.runner._resets[i] = None, 0

    def _seed(self, env_id: int) -> dict[str, int]:
        seed = self.seeds[env_id]
        if seed is None:
            return {}
        return {"seed": int(np.random.SeedSequence([seed, self.counts[env_id]]).generate_state(1)[0])}

    def start_reset(self, reset: Any, deadline: float | None) -> None:
        """In the place of the engine's own."""
        if self.step_is_pending:
            # Workers do what was sent, the serial engine what is received. Nobody sees this step, but it was taken.
            self.step_is_pending = False
            self._finish_step(None, None)
        for i, arguments in enumerate(reset.arguments):
            if arguments.get("seed") is not None and (reset.mask is None or reset.mask[i]):
                self.seeds[i], self.counts[i] = int(arguments["seed"]), 0
        for env_ids, faults in self.lost_in_reset:
            self.lose(env_ids, faults)
        self.lost_in_reset.clear()
        self._start_reset(reset, deadline)

    def finish_reset(self, deadline: float | None, seconds: float | None) -> Any:
        """In the place of the engine's own."""
        result = self._finish_reset(deadline, seconds)
        self.last = copy.deepcopy(result.observations)
        for i, env in enumerate(self.runner.envs):
            if isinstance(env, Understudy):
                env.last = copy.deepcopy(row_of(self.last, i))
        return result

    def start_step(self, *request: Any) -> None:
        """In the place of the engine's own."""
        self.step_is_pending = True
        self._start_step(*request)

    def finish_step(self, deadline: float | None, seconds: float | None) -> Any:
        """In the place of the engine's own."""
        result = self._finish_step(deadline, seconds)
        self.step_is_pending = False
        self.last = copy.deepcopy(result.observations)
        return result

    def forget(self, env_ids: Iterable[int]) -> None:
        """All environments of a worker were reset: there is nothing left to tell."""
        for i in env_ids:
            if isinstance(self.runner.envs[i], Understudy):
                self.runner.envs[i] = self.runner.envs[i].env


def row_of(observations: Any, index: int) -> Any:
    """The observation of one environment."""
    if isinstance(observations, dict):
        return {key: row_of(value, index) for key, value in observations.items()}
    if isinstance(observations, tuple):
        return tuple(row_of(value, index) for value in observations)
    return observations[index]
