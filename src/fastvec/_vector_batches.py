"""What Gymnasium's vector environments take and give, checked and translated.

Batches of actions and observations, seeds, options, modes, and the order of calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces, batch_space
from numpy.typing import NDArray

from fastvec._core.pickles import dumps
from fastvec._core.state import PENDING, EngineState
from fastvec._core.structure import DictNode, Leaf, Node
from fastvec.errors import ActionError, ConfigError

__all__ = [
    "batched_space",
    "check_idle",
    "check_open",
    "check_pending",
    "one_each",
    "resolve_mode",
    "single_space",
    "split_options",
    "unbatched",
    "with_finals",
    "with_tuples",
]


def resolve_mode(mode: Any) -> AutoresetMode:
    """An autoreset mode from itself or its value."""
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError:
        values = ", ".join(repr(one.value) for one in AutoresetMode)
        raise ConfigError(f"autoreset_mode must be one of {values}, or an AutoresetMode, got {mode!r}") from None


def single_space(mode: Any) -> bytes | None:
    """A pickle of the space of single observations that an ``observation_mode`` names, or None for theirs."""
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            raise TypeError(
                f"observation_mode must be a tuple of two spaces, batched and single, got {type(mode[0]).__name__} "
                f"and {type(mode[1]).__name__}"
            )
        return dumps(mode[1])
    if mode not in ("same", "different"):
        raise ConfigError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}"
        )
    return None


def batched_space(mode: Any, spaces: Sequence[Space[Any]]) -> Space[Any]:
    """The space of a batch of observations by an ``observation_mode``, from the spaces of the environments."""
    if isinstance(mode, tuple):
        batched: Space[Any] = mode[0]
        return batched
    return batch_differing_spaces(spaces) if mode == "different" else batch_space(spaces[0], len(spaces))


def one_each(name: str, values: Sequence[Any], num_envs: int) -> list[tuple[Any]]:
    """The values of an attribute that ``set_attr`` was given, one for each environment."""
    if len(values) != num_envs:
        raise ConfigError(
            f"set_attr({name!r}, ...) got a {type(values).__name__} of {len(values)} values for {num_envs} "
            "environments: a list or tuple must have one for each"
        )
    return [(value,) for value in values]


def split_options(
    options: Mapping[str, Any] | None, num_envs: int
) -> tuple[dict[str, Any] | None, NDArray[np.bool_] | None]:
    """The options of single environments, and the mask of those to reset; the argument is left as it is."""
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(f"options must be a dict, got {options!r}")
    if options is None or "reset_mask" not in options:
        return None if options is None else dict(options), None
    rest = dict(options)
    mask = rest.pop("reset_mask")
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ConfigError(f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ConfigError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}"
        )
    return rest, mask


def unbatched(actions: Any, node: Node, space: Any, num_envs: int, name: str) -> Iterator[Any]:
    """Single actions from a batch of arrays nested as the space is.

    Args:
        actions: The batch.
        node: What a single action looks like.
        space: The batched space, whose order of keys single actions have too.
        num_envs: How many actions there must be.
        name: What to call the batch in an error.

    Raises:
        ActionError: The batch is not nested like the space, or a part of it has not a row for each environment.
    """
    if isinstance(node, DictNode):
        if not isinstance(actions, Mapping) or any(key not in actions for key in node.keys):
            got = f"the keys {list(actions)}" if isinstance(actions, Mapping) else f"a {type(actions).__name__}"
            raise ActionError(f"{name} must be a dict of batches with the keys {list(node.keys)}, got {got}")
        order = list(space.spaces)
        parts = [
            list(unbatched(actions[key], child, space[key], num_envs, f"{name}[{key!r}]"))
            for key, child in sorted(zip(node.keys, node.children, strict=True), key=lambda pair: order.index(pair[0]))
        ]
        rows = zip(*parts, strict=True) if parts else iter([()] * num_envs)
        return (dict(zip(order, row, strict=True)) for row in rows)
    if isinstance(node, Leaf):
        try:
            single = list(actions)
        except TypeError:
            raise ActionError(f"{name} must be a batch of {num_envs} actions, got a {type(actions).__name__}") from None
        if len(single) != num_envs:
            raise ActionError(f"{name} must be a batch of {num_envs} actions, got {len(single)}")
        return iter(single)
    if not isinstance(actions, (tuple, list)) or len(actions) != len(node.children):
        got = f"{len(actions)} elements" if isinstance(actions, (tuple, list)) else f"a {type(actions).__name__}"
        raise ActionError(f"{name} must be a tuple of {len(node.children)} batches, got {got}")
    parts = [
        list(unbatched(part, child, space[index], num_envs, f"{name}[{index}]"))
        for index, (part, child) in enumerate(zip(actions, node.children, strict=True))
    ]
    return iter(zip(*parts, strict=True)) if parts else iter([()] * num_envs)


def with_tuples(observations: Any, node: Node) -> Any:
    """Observations with a tuple in the place of each array of objects."""
    if isinstance(node, Leaf):
        return tuple(observations) if node.spec is None else observations
    if isinstance(node, DictNode):
        return {key: with_tuples(observations[key], child) for key, child in zip(node.keys, node.children, strict=True)}
    return tuple(with_tuples(part, child) for part, child in zip(observations, node.children, strict=True))


def with_finals(
    infos: Sequence[dict[str, Any]], ended: Sequence[bool], finals: Mapping[int, Any], reset_infos: Mapping[int, Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """What the environments say in a step that also resets: for who ended, about the end and then about the reset."""
    for index, info in enumerate(infos):
        if ended[index]:
            yield index, {"final_obs": finals[index], "final_info": info}
            yield index, reset_infos.get(index, {})
        else:
            yield index, info


def check_idle(state: EngineState, function: str) -> None:
    """Raise Gymnasium's errors unless something new can be asked for."""
    check_open(state, function)
    if state in PENDING:
        raise AlreadyPendingCallError(
            f"Calling `{function}` while waiting for a pending call to `{state.value}` to complete.", state.value
        )


def check_pending(state: EngineState, wanted: EngineState) -> None:
    """Raise Gymnasium's errors unless what is waited for has been asked for."""
    name = wanted.value
    check_open(state, f"{name}_wait")
    if state is not wanted and (state in PENDING or state is EngineState.IDLE):
        raise NoAsyncCallError(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)


def check_open(state: EngineState, function: str) -> None:
    if state is EngineState.CLOSED:
        raise ClosedEnvironmentError(f"{function}() is not possible: the environments have been closed")
