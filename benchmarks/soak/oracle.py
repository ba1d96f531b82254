"""What has to come back: the serial engine, and a model of what `on_failure="restart"` shows.

The serial engine is the one that `num_workers=0` gives. It never fails, so what a restart does to a run has to be
done to it by hand. :class:`Oracle` does so in terms of environments only, from what the documentation promises:

- The environments of the lost worker are built again, and each is reset with a seed that follows from the last one
  that its user gave: the n-th restart since then gets the first word of `SeedSequence([seed, n])`. The options are
  those of any other automatic reset (`reset_options`).
- The next step is not theirs. It says of each that its episode was truncated, without a reward, with
  `worker_restarted` as all of its info and the last observation that was shown as the last one of the episode. Until
  then whoever looks at the batch, as after a reset of others, sees that observation.
- Who is reset before that step has nothing to tell any more.

For that, each environment of the serial engine is a :class:`Place`. Where a worker was lost, a new environment takes
the place of the old one, and for one step the place itself acts as an environment whose episode is truncated. What a
truncation looks like in each autoreset mode and face, the serial engine and the face then show by themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from soak.compare import Like
from soak.envs import Plan
from soak.faults import Fault


@dataclass
class Cut:
    """What the next step has to say.

    Attributes:
        last: The last observation of the old environment.
        info: What happened.
        first: What the reset of the new environment returned.
    """

    last: Any
    info: dict[str, Any]
    first: Any


class Place(gymnasium.Env[Any, Any]):
    """An environment that can be exchanged.

    Args:
        plan: Of the environment.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.env: Any = plan()
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        self.render_mode = self.env.render_mode
        #: Until it has been told.
        self.cut: Cut | None = None
        self._first: Any = None

    def exchange(self, keywords: dict[str, Any], last: Any, info: dict[str, Any]) -> None:
        """A new environment, reset with these keywords, for the step that comes next to tell of."""
        self.env = self.plan()
        self.cut = Cut(last, info, copy.deepcopy(self.env.reset(**keywords)))

    def reset(self, **keywords: Any) -> Any:
        """Of the environment, unless the reset that belongs to the truncation has taken place before."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        self.cut = None
        return self.env.reset(**keywords)

    def step(self, action: Any) -> Any:
        """Of the environment, or the truncation."""
        if self.cut is None:
            return self.env.step(action)
        cut, self.cut = self.cut, None
        self._first = cut.first
        return cut.last, 0.0, False, True, {"worker_restarted": dict(cut.info)}

    def render(self) -> Any:
        return self.env.render()

    @property
    def tag(self) -> Any:
        """The one attribute that is set from outside."""
        return self.env.tag

    @tag.setter
    def tag(self, value: Any) -> None:
        self.env.tag = value

    def get_wrapper_attr(self, name: str) -> Any:
        return self.env.get_wrapper_attr(name)

    def set_wrapper_attr(self, name: str, value: Any, **keywords: Any) -> Any:
        return self.env.set_wrapper_attr(name, value, **keywords)

    def forget_first(self) -> None:
        """The step that told has not reset anybody."""
        self._first = None


class Oracle:
    """Follows the serial engine of a face, and exchanges its environments.

    Args:
        face: With `num_workers=0`, over places.
        places: Its environments.
        reset_options: The option of that name.
    """

    def __init__(self, face: Any, places: list[Place], reset_options: Any) -> None:
        self.engine, self.places, self.reset_options = face._engine, places, reset_options
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
            if i in self.runner._roster.ended:
                # Its last episode had ended and was going to be reset by the lost step. Now it ends once more, and for
                # `reset_options` that is one more episode.
                self.runner._roster.ended.discard(i)
                self.runner._options.counts[i] += 1
            self.places[i].exchange(self.arguments(i), copy.deepcopy(row_of(self.last, i)), info)

    def arguments(self, env_id: int) -> dict[str, Any]:
        """Of the reset of a new environment."""
        arguments: dict[str, Any] = {}
        seed = self.seeds[env_id]
        if seed is not None:
            words = np.random.SeedSequence([seed, self.counts[env_id]]).generate_state(1)
            arguments["seed"] = int(words[0])
        options = None
        if callable(self.reset_options):
            options = self.reset_options(env_id, self.runner._options.counts[env_id] + 1)
        elif self.reset_options == "keep":
            options = self.runner._options.last[env_id]
        return arguments if options is None else arguments | {"options": options}

    def start_reset(self, reset: Any, deadline: float | None) -> None:
        """In the place of the engine's own."""
        if self.step_is_pending:
            # Workers do what was sent, the serial engine what is received. Nobody sees this step, but it was taken.
            self.finish_step(None, None)
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
        return result

    def start_step(self, *request: Any) -> None:
        """In the place of the engine's own."""
        self.step_is_pending = True
        self._start_step(*request)

    def finish_step(self, deadline: float | None, seconds: float | None) -> Any:
        """In the place of the engine's own."""
        self.step_is_pending = False
        result = self._finish_step(deadline, seconds)
        for place in self.places:
            place.forget_first()
        self.last = copy.deepcopy(result.observations)
        return result


def row_of(observations: Any, index: int) -> Any:
    """The observation of one environment."""
    if isinstance(observations, dict):
        return {key: row_of(value, index) for key, value in observations.items()}
    if isinstance(observations, tuple):
        return tuple(row_of(value, index) for value in observations)
    return observations[index]
