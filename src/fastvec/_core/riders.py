"""Values that ride along with each step: of methods that learners call after it, and of attributes that they read.

They are taken in the runner, once the step or reset is done, and travel like infos: numbers and arrays as
columns, the rest as pickles (:mod:`fastvec._core.infos`). A method's value has its name with ``()`` as key, an
attribute's its name alone, so that what is called and what is read are not taken for each other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastvec._core.building import blame
from fastvec._core.infos import Freeze, InfoSchema, InfoWriter
from fastvec.errors import ConfigError

__all__ = ["LookUp", "RiderWriter", "check_riders"]

#: The attribute of an environment, as its face looks it up.
LookUp = Callable[[Any, str], Any]


class RiderWriter:
    """Takes the values of a slice of environments.

    Args:
        names: Of the methods and attributes.
        look_up: Finds them.
        env_ids: The environments.
        codes: ``(k,) int32``, the slice's part of ``rider_codes``.
        cells: ``(k, RIDER_CELLS) float64``, the slice's part of ``rider_cells``.
        freeze: See :class:`~fastvec._core.infos.InfoWriter`.
        at: See :class:`~fastvec._core.runner.EnvRunner`.

    Attributes:
        names, look_up: As given.
    """

    def __init__(
        self,
        names: Sequence[str],
        look_up: LookUp,
        env_ids: range,
        codes: NDArray[np.int32],
        cells: NDArray[np.float64],
        freeze: Freeze,
        at: memoryview,
    ) -> None:
        self.names, self.look_up = tuple(names), look_up
        self._keys = [(name, f"{name}()") for name in names]
        self._env_ids, self._at = env_ids, at
        self._writer = InfoWriter(codes, cells, freeze, of="with_step")

    def take(self, envs: Iterable[tuple[int, Any]]) -> tuple[dict[int, Any], list[InfoSchema]]:
        """Store the values of some environments.

        Returns:
            By row, frozen, what the cells do not hold, and schemas that appear for the first time.
        """
        rests: dict[int, Any] = {}
        for row, env in envs:
            self._at[0] = row + 1
            values = self._values(row, env)
            with blame(self._env_ids[row], "with_step"):
                rest = self._writer.write(row, values)
            if rest is not None:
                rests[row] = rest
        return rests, self._writer.take_new()

    def _values(self, row: int, env: Any) -> dict[str, Any]:
        values = {}
        for name, called in self._keys:
            with blame(self._env_ids[row], name):
                value = self.look_up(env, name)
                if callable(value):
                    values[called] = value()
                else:
                    values[name] = value
        return values


def check_riders(envs: Sequence[Any], env_ids: range, names: Sequence[str], look_up: LookUp) -> None:
    """Look whether environments, just built, have the methods and attributes that are to ride along.

    Raises:
        EnvFailure: One has not, or a method wants arguments.
    """
    for env_id, env in zip(env_ids, envs, strict=True):
        for name in names:
            with blame(env_id, "constructor"):
                _check(env_id, env, name, look_up)


def _check(env_id: int, env: Any, name: str, look_up: LookUp) -> None:
    try:
        value = look_up(env, name)
    except AttributeError as error:
        raise ConfigError(
            f"with_step names {name!r}, and env {env_id} has no such method or attribute once it is built ({error}): "
            "correct the name, or have the environment set it in __init__"
        ) from error
    if not callable(value):
        return
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # of some functions in C it is not known
        return
    try:
        signature.bind()
    except TypeError as error:
        raise ConfigError(
            f"with_step names {name!r}, which is called without arguments, and that of env {env_id} is called as "
            f"{name}{signature}: name a method without arguments"
        ) from error
