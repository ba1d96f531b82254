"""How the spaces of sub-environments must agree for Gymnasium's ``observation_mode``. Imported by workers."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv

from fastvec._core.pickles import dumps_home
from fastvec._core.structure import EnvDescription
from fastvec._spaces import GymnasiumAdapter, Spaces, tree_of
from fastvec.errors import SpaceMismatchError

__all__ = ["VectorAdapter"]


@dataclass(frozen=True)
class VectorAdapter(GymnasiumAdapter):
    """Compares observation spaces as Gymnasium's vector environments do.

    Attributes:
        single_space: A pickle of the space that all observations are to have, in place of the first environment's.
    """

    single_space: bytes | None = None

    def describe(self, envs: list[Any], env_ids: range) -> EnvDescription:
        """What some environments declare.

        Raises:
            SpaceMismatchError: They disagree, with each other or with the space asked for.
        """
        if self.single_space is None:
            return super().describe(envs, env_ids)
        wanted = pickle.loads(self.single_space), envs[0].action_space
        for index, env in zip(env_ids, envs, strict=True):
            difference = self._difference(wanted, (env.observation_space, env.action_space))
            if difference is not None:
                raise SpaceMismatchError(f"the observation_mode asked for and env {index} {difference}")
        return EnvDescription(tree_of(wanted[0]), tree_of(wanted[1]), dumps_home(wanted))

    def _difference(self, first: Spaces, other: Spaces) -> str | None:
        (observation, action), (other_observation, other_action) = first, other
        if not self.allow_space_differences:
            if observation != other_observation:
                return (
                    "disagree, with observation_mode='same': the sub-environments observation spaces are not "
                    f"equivalent. They are {observation} and {other_observation}. If this is intentional, use "
                    "`observation_mode='different'` instead."
                )
        elif not _equivalent(observation, other_observation):
            return (
                "disagree: their observation spaces do not share a common shape and dtype: "
                f"{observation} and {other_observation}"
            )
        if action != other_action:
            return f"declare different action spaces, which must be equal to be batched: {action} and {other_action}"
        return None


def _equivalent(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    try:
        return bool(is_space_dtype_shape_equiv(one, other))
    except NotImplementedError:  # a custom space
        return one == other
