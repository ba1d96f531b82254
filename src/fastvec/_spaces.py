"""Gymnasium's spaces and environments in the engine's terms.

Imported by workers, so it knows Gymnasium and nothing heavier: Stable-Baselines3 would bring torch
into every one of them.
"""

from __future__ import annotations

import pickle
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from fastvec._core.pickles import dumps, dumps_home
from fastvec._core.structure import ArraySpec, DictNode, EnvDescription, Leaf, Node, Path, TupleNode
from fastvec._hand_over import building_spares, hand_over
from fastvec.errors import SpaceMismatchError

__all__ = ["GymnasiumAdapter", "Spaces", "tree_of"]

_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

#: Observation and action space.
Spaces = tuple[spaces.Space[Any], spaces.Space[Any]]


def tree_of(space: spaces.Space[Any], path: Path = ()) -> Node:
    """The tree of arrays for a space; leaves without a fixed shape and dtype travel as objects."""
    if isinstance(space, spaces.Dict):
        return DictNode(tuple(space.spaces), tuple(tree_of(child, (*path, key)) for key, child in space.spaces.items()))
    if isinstance(space, spaces.Tuple):
        return TupleNode(tuple(tree_of(child, (*path, index)) for index, child in enumerate(space.spaces)))
    if isinstance(space, _ARRAY_SPACES) and space.shape is not None and space.dtype is not None:
        return Leaf(ArraySpec(tuple(space.shape), np.dtype(space.dtype)), path)
    return Leaf(None, path)


@dataclass(frozen=True)
class GymnasiumAdapter:
    """What the engine needs to know of Gymnasium's environments.

    Attributes:
        allow_space_differences: Whether spaces may differ in what does not change their arrays, such as bounds.
        registered: Pickles of the specs that the program has registered, which workers do not know otherwise.
    """

    allow_space_differences: bool = False
    registered: tuple[bytes, ...] = ()

    def set_up(self, *, later: bool) -> None:
        """In a worker: make known what the program has registered with ``gymnasium.register``."""
        for data in self.registered:
            spec = pickle.loads(data)
            gymnasium.registry.setdefault(spec.id, spec)

    def prepare(self, env: Any) -> Any:
        """Environments are used as they are."""
        return env

    def building_spares(self) -> AbstractContextManager[list[Any]]:
        """A context for factories that are called once more; in it, a list to put their environments in."""
        return building_spares()

    def hand_over(self, ended: Any, ready: Any) -> None:
        """Leave with an index what belongs to it, as another environment takes the place of one."""
        hand_over(ended, ready)

    def look_up(self, env: Any, name: str) -> Any:
        """The attribute of the outermost wrapper that has it."""
        return env.get_wrapper_attr(name)

    def describe(self, envs: list[Any], env_ids: range) -> EnvDescription:
        """What some environments declare.

        Raises:
            SpaceMismatchError: They disagree.
        """
        first = _spaces_of(envs[0])
        for index, env in zip(env_ids[1:], envs[1:], strict=True):
            difference = self._difference(first, _spaces_of(env))
            if difference is not None:
                raise SpaceMismatchError(f"env {env_ids[0]} and env {index} {difference}")
        observation, action = first
        return EnvDescription(tree_of(observation), tree_of(action), dumps_home(first))

    def difference(self, first: EnvDescription, other: EnvDescription) -> str | None:
        """In words, how two descriptions differ, or None."""
        if first.spaces == other.spaces:
            return None
        return self._difference(pickle.loads(first.spaces), pickle.loads(other.spaces))

    def _difference(self, first: Spaces, other: Spaces) -> str | None:
        for kind, one, two in zip(("observation", "action"), first, other, strict=True):
            if one == two or (self.allow_space_differences and tree_of(one) == tree_of(two)):
                continue
            hint = ""
            if tree_of(one) == tree_of(two):
                hint = "; pass allow_space_differences=True if shapes and dtypes are all that must agree"
            return f"declare different {kind} spaces: {one} and {two}{hint}"
        return None

    def modules_for(self, strings: set[str]) -> list[str]:
        """The modules behind the environment ids among some strings."""
        modules = []
        for name in sorted(strings & gymnasium.registry.keys()):
            entry_point = gymnasium.registry[name].entry_point
            if isinstance(entry_point, str):
                modules.append(entry_point.partition(":")[0])
        return modules


def registered_specs() -> tuple[bytes, ...]:
    """Pickles of the specs in this process's registry that Gymnasium itself has not put there."""
    found = []
    for spec in gymnasium.registry.values():
        if isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium."):
            continue
        try:
            found.append(dumps(spec))
        except Exception:
            continue
    return tuple(found)


def _spaces_of(env: Any) -> Spaces:
    return env.observation_space, env.action_space
