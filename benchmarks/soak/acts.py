"""What can be done with a batch of environments, whichever face it has.

An :class:`Act` is something to do, to the face with workers and to the serial one alike. It returns all that came
back on the way. What it touches is written beside, as it decides who notices that a worker is dead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from soak.spaces import draw_actions


@dataclass(frozen=True)
class Act:
    """Something to do.

    Attributes:
        name: In words.
        do: What it does with a face; returns results, and exceptions of calls, in a list.
        steps: How many steps it takes.
        resets: Whom it resets.
        calls: Whose methods it calls or attributes it reads, after all else.
        polls: How often it may find a step unfinished, which the serial engine never does.
        drops: Whether a step is started whose results nobody gets.
    """

    name: str
    do: Callable[[Any], list[Any]]
    steps: int = 0
    resets: frozenset[int] = frozenset()
    calls: frozenset[int] = frozenset()
    polls: bool = False
    drops: bool = False


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function returns or raises."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return error
    except BaseException as error:
        if type(error).__name__ == "BaseOnlyError":
            return error
        raise


class Face:
    """One of the faces, as a source of random acts.

    Args:
        rng: What decides.
        num_envs: How many environments there are.
        action_space: Theirs.
    """

    name: str
    #: Whether actions may be nested, and whether environments get seeds and options.
    nested_actions = False
    seeded = True

    def __init__(self, rng: np.random.Generator, num_envs: int, action_space: spaces.Space[Any]) -> None:
        self.rng, self.num_envs, self.action_space = rng, num_envs, action_space
        self.all = frozenset(range(num_envs))

    def options(self) -> dict[str, Any]:
        """Random options that this face has besides the engine's."""
        return {}

    def make(self, env_fns: list[Any], **options: Any) -> Any:
        raise NotImplementedError

    def acts(self) -> list[tuple[float, Callable[[], Act]]]:
        """What there is to do, with how often to do it."""
        raise NotImplementedError

    def first_reset(self) -> Act:
        """A reset with seeds, where there are seeds."""
        raise NotImplementedError

    def calling(self, env_id: int, size: int = 0) -> Act:
        """Something in which one environment's method is called, for it to fail in."""
        raise NotImplementedError

    def actions(self) -> Any:
        return draw_actions(self.action_space, self.rng, self.num_envs)

    def seed(self) -> int:
        return int(self.rng.integers(2**31))

    def some(self) -> list[int]:
        """Some environments, in any order, perhaps twice."""
        return [int(i) for i in self.rng.integers(self.num_envs, size=self.rng.integers(1, self.num_envs + 1))]

    def anyone(self) -> int:
        return int(self.rng.integers(self.num_envs))

    def step(self) -> Act:
        actions = self.actions()
        return Act("step", lambda vec: [attempt(vec.step, actions)], steps=1)

    def step_in_two(self) -> Act:
        actions = self.actions()

        def do(vec: Any) -> list[Any]:
            return [attempt(vec.step_async, actions), attempt(vec.step_wait)]

        return Act("step_async and step_wait", do, steps=1)

    def wrong_actions(self) -> Act:
        wrong = [np.zeros((self.num_envs + 1, 7), np.int64), 3, ["x"] * self.num_envs][self.rng.integers(3)]
        return Act("wrong actions", lambda vec: [attempt(vec.step_async, wrong)])

    def too_much(self) -> Act:
        """Receives what is not there, and sends twice."""
        actions = self.actions()

        def do(vec: Any) -> list[Any]:
            names = ("step_wait", "step_async", "step_async", "step_wait")
            return [attempt(getattr(vec, name), *([actions] if name == "step_async" else [])) for name in names]

        return Act("calls out of order", do, steps=1)
