"""Batches of actions: checked as a whole before any environment sees one.

An array of the right shape and of a plain dtype travels as it is, in its own dtype; anything else
(lists, dicts, tuples, objects) is checked element by element and travels as a pickle, so that each
environment gets the very object that it would get from a serial class.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastvec._core.layout import ACTION_DTYPES
from fastvec._core.structure import ArraySpec, DictNode, Leaf, Node, TupleNode, path_text
from fastvec.errors import ActionError, CallError

__all__ = ["ActionBatch", "check_actions", "check_env_ids"]

_CODES = {dtype: code for code, dtype in enumerate(ACTION_DTYPES)}


class ActionBatch(NamedTuple):
    """A checked batch: an array with its dtype's code, or a list of objects."""

    array: NDArray[Any] | None
    code: int
    objects: list[Any]


def check_actions(actions: Any, num_envs: int, tree: Node) -> ActionBatch:
    """Check a batch of actions against what the environments declare.

    Args:
        actions: ``(num_envs, *shape)`` array, or any sequence of ``num_envs`` actions.
        num_envs: How many are expected.
        tree: What one action looks like.

    Raises:
        ActionError: Wrong length, shape or dtype.
    """
    spec = tree.spec if isinstance(tree, Leaf) else None
    if spec is not None and not isinstance(actions, np.ndarray) and hasattr(actions, "__array__"):
        actions = _as_array(actions)
    if type(actions) is np.ndarray and spec is not None and actions.dtype != object:
        expected = (num_envs, *spec.shape)
        if actions.shape != expected:
            raise ActionError(f"actions must have shape {expected}, got {actions.shape}")
        _check_dtype(actions, spec, "actions")
        code = _CODES.get(actions.dtype)
        if code is not None and actions.dtype.type is ACTION_DTYPES[code].type:
            return ActionBatch(actions, code, [])
    try:
        objects = list(actions)
    except TypeError:
        raise ActionError(
            f"actions must be an array or a sequence of {num_envs} actions, got a {type(actions).__name__}"
        ) from None
    if len(objects) != num_envs or isinstance(actions, (dict, str)):
        got = f"a {type(actions).__name__}" if isinstance(actions, (dict, str)) else f"{len(objects)}"
        raise ActionError(f"actions must be a sequence of {num_envs} actions, one an environment: got {got}")
    for index, action in enumerate(objects):
        _check_one(action, tree, index)
    return ActionBatch(None, 0, objects)


def check_env_ids(env_ids: Sequence[int], num_envs: int, sent: Collection[int]) -> None:
    """Check whose actions these are.

    Args:
        env_ids: The environments.
        num_envs: How many there are.
        sent: Those that have an action already.

    Raises:
        ActionError: One does not exist, or is there twice, or there is none.
        CallError: One has not been received since its last action.
    """
    if not env_ids or len(set(env_ids)) != len(env_ids) or not all(0 <= i < num_envs for i in env_ids):
        raise ActionError(f"env_ids must be different numbers from 0 to {num_envs - 1}, at least one, got {env_ids}")
    pending = sorted(set(env_ids).intersection(sent))
    if pending:
        raise CallError(f"envs {pending} are pending already: receive them before sending them another action")


def _as_array(actions: Any) -> NDArray[Any]:
    """A tensor of another library as an array: its elements would travel as pickles, each with its library."""
    try:
        return np.asarray(actions)
    except Exception as error:
        raise ActionError(
            f"actions must be an array in this process's memory, got a {type(actions).__name__} that is not ({error}): "
            "for example, pass actions.cpu().numpy()"
        ) from error


def _check_one(action: Any, node: Node, index: int) -> None:
    if isinstance(node, Leaf):
        if node.spec is not None:
            name = path_text(node.path, f"the action of env {index}")
            try:
                array = np.asarray(action)
            except ValueError:
                raise ActionError(f"{name} must have shape {node.spec.shape}, got {action!r}") from None
            if array.shape != node.spec.shape:
                raise ActionError(f"{name} must have shape {node.spec.shape}, got {array.shape}")
            _check_dtype(array, node.spec, name)
    elif isinstance(node, DictNode):
        if not hasattr(action, "keys") or any(key not in action for key in node.keys):
            raise ActionError(
                f"the action of env {index} must be a dict with the keys {list(node.keys)}, got {action!r}"
            )
        for key, child in zip(node.keys, node.children, strict=True):
            _check_one(action[key], child, index)
    else:
        assert isinstance(node, TupleNode)
        if not isinstance(action, (tuple, list, np.ndarray)) or len(action) != len(node.children):
            raise ActionError(
                f"the action of env {index} must be a tuple of {len(node.children)} elements, got {action!r}"
            )
        for part, child in zip(action, node.children, strict=True):
            _check_one(part, child, index)


def _check_dtype(actions: NDArray[Any], spec: ArraySpec, name: str) -> None:
    given, wanted = actions.dtype, spec.dtype
    if given == wanted or (given.kind in "iu" and wanted.kind in "iu"):
        return
    if given.kind == "f" and wanted.kind in "iu":
        # Passed on as floats, as a serial class would; what cannot be meant is a fraction.
        if np.array_equal(actions, np.trunc(actions)):
            return
        raise ActionError(
            f"{name} must be whole numbers ({wanted}), got {actions[actions != np.trunc(actions)].flat[0]}"
        )
    if not np.can_cast(given, wanted, casting="same_kind"):
        raise ActionError(f"{name} must have dtype {wanted} or one that casts to it, got {given}")
