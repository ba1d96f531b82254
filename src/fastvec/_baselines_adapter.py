"""How the Baselines face treats environments: those of old Gym's API as well as Gymnasium's.

Imported by workers, so it knows Gymnasium's spaces and nothing heavier; of ``gym`` it needs no more than the
names of its spaces. It must not know what a batch looks like.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium import spaces

from fastvec._core.pickles import dumps_home
from fastvec._core.structure import TupleNode, lookup
from fastvec._spaces import GymnasiumAdapter, Spaces, tree_of
from fastvec.errors import EnvError, ObservationError

__all__ = ["BaselinesAdapter", "EitherEnv", "declaration", "gymnasium_space", "image"]


class EitherEnv:
    """An environment of Gymnasium's or of old Gym's API, called as Gymnasium's are.

    Which it is shows in what ``reset()`` and ``step()`` return, and only there: old code runs with its ``gym``
    replaced by ``gymnasium``, so the class does not tell, and a wrapper passes on whatever it is given, so the
    signature does not either. Every other attribute is the environment's own.

    Args:
        env: The environment; closed with this.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = gymnasium_space(env.observation_space)
        self.action_space = gymnasium_space(env.action_space)
        self._tree = tree_of(self.observation_space)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not there yet, while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return getattr(self.env, "unwrapped", self.env)

    def reset(self) -> Any:
        """The first observation and its info, which is ``{}`` of an old environment.

        Without seed and options: Baselines seeds environments where it makes them.
        """
        result = self.env.reset()
        return result if self._is_with_info(result) else (result, {})

    def step(self, action: Any) -> Any:
        """Observation, reward, terminated, truncated, info; an old environment's ``done`` counts as terminated."""
        result = self.env.step(action)
        try:
            if len(result) == 5:
                return result
            observation, reward, done, info = result
        except (TypeError, ValueError):
            got = f"{len(result)} values" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
            raise EnvError(
                "step() must return (observation, reward, terminated, truncated, info), or (observation, reward, "
                f"done, info) by the old gym API, got {got}"
            ) from None
        return observation, reward, done, False, info

    def _is_with_info(self, result: Any) -> bool:
        if not (isinstance(result, (tuple, list)) and len(result) == 2 and isinstance(result[1], dict)):
            return False
        # Only where observations are tuples themselves, an old environment's might look like this.
        return not isinstance(self._tree, TupleNode) or self._has_form(result[0])

    def _has_form(self, observation: Any) -> bool:
        try:
            list(lookup(observation, self._tree, ""))
        except ObservationError:
            return False
        return True


@dataclass(frozen=True)
class BaselinesAdapter(GymnasiumAdapter):
    """Accepts environments of either API."""

    def prepare(self, env: Any) -> EitherEnv:
        """The environment in Gymnasium's call shape."""
        return EitherEnv(env)

    def contradiction(self, given: Any, declared: Spaces) -> str | None:
        """In words, how a user's observation and action space differ from the environments', or None."""
        observation_space, action_space = given
        return self._difference((gymnasium_space(observation_space), gymnasium_space(action_space)), declared)


def gymnasium_space(space: Any) -> Any:
    """A space of the ``gym`` package as Gymnasium's of the same name; any other as it is."""
    if isinstance(space, gymnasium.Space):
        return space
    for base in type(space).__mro__:
        if base.__name__ in _TRANSLATIONS:
            return _TRANSLATIONS[base.__name__](space)
    return space


_TRANSLATIONS: dict[str, Callable[[Any], Any]] = {
    "Box": lambda s: spaces.Box(s.low, s.high, s.shape, s.dtype),
    "Discrete": lambda s: spaces.Discrete(int(s.n), start=int(getattr(s, "start", 0))),
    "MultiDiscrete": lambda s: spaces.MultiDiscrete(s.nvec),
    "MultiBinary": lambda s: spaces.MultiBinary(s.n),
    "Tuple": lambda s: spaces.Tuple([gymnasium_space(child) for child in s.spaces]),
    "Dict": lambda s: spaces.Dict(OrderedDict((key, gymnasium_space(child)) for key, child in s.spaces.items())),
}


# What the face does to single environments, run in the workers.


def declaration(env: EitherEnv) -> bytes:
    """A pickle of the environment's own observation space, action space and ``spec``; None for one that has none."""
    own = env.env
    declared = own.observation_space, own.action_space
    try:
        return dumps_home((*declared, getattr(own, "spec", None)))
    except Exception:  # a spec may hold whatever its environment was made with
        return dumps_home((*declared, None))


def image(env: EitherEnv) -> Any:
    """What the environment renders: by its own ``render_mode``, or asked for ``rgb_array`` as old ones are."""
    render = env.env.render
    if getattr(env.env, "render_mode", None) is None and _takes_mode(render):
        return render(mode="rgb_array")
    return render()


def _takes_mode(render: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(render).parameters
    except (TypeError, ValueError):  # written in C
        return True
    return "mode" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
