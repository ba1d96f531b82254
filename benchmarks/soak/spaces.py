"""Random spaces, and values of them that come out of one given generator only.

A space's own `sample()` has a generator of its own, which is one more state for an environment to have. Here every
value is drawn from the environment's `np_random`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import GraphInstance

Generator = np.random.Generator

#: What a network might choke on, and what a transport must not change.
ODD = (np.nan, np.inf, -np.inf, -0.0, 1e-40)
LETTERS = "abcXYZ019"


def random_box(rng: Generator) -> spaces.Box:
    shapes: list[tuple[int, ...]] = [(), (1,), (3,), (2, 3), (4, 4, 3), (0,), (17,)]
    shape = shapes[rng.integers(len(shapes))]
    kinds: list[tuple[Any, Any, type[Any]]] = [
        (-1, 1, np.float32),
        (-np.inf, np.inf, np.float32),
        (-np.inf, np.inf, np.float64),
        (-1, 1, np.float16),
        (0, 255, np.uint8),
        (-128, 127, np.int8),
        (-(2**40), 2**40, np.int64),
        (0, 1000, np.uint16),
        (0, 1, np.bool_),
    ]
    low, high, dtype = kinds[rng.integers(len(kinds))]
    return spaces.Box(low, high, shape, dtype)


def random_numeric(rng: Generator) -> spaces.Space[Any]:
    """A space whose values are arrays or numbers."""
    kind = rng.integers(6)
    if kind == 0:
        return spaces.Discrete(int(rng.integers(2, 9)), start=int(rng.integers(-3, 4)))
    if kind == 1:
        return spaces.MultiDiscrete(rng.integers(2, 6, tuple(rng.integers(1, 4, rng.integers(1, 3)))))
    if kind == 2:
        return spaces.MultiBinary([int(n) for n in rng.integers(1, 4, rng.integers(1, 3))])
    return random_box(rng)


def random_object(rng: Generator) -> spaces.Space[Any]:
    """A space whose values have no fixed size."""
    kind = rng.integers(4)
    if kind == 0:
        return spaces.Text(int(rng.integers(1, 12)))
    if kind == 1:
        return spaces.Sequence(spaces.Discrete(9))
    if kind == 2:
        return spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3))
    return spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))])


def random_space(rng: Generator, depth: int = 2) -> spaces.Space[Any]:
    """An observation space: mostly numbers, nested up to `depth` levels, sometimes with parts of no fixed size."""
    kind = rng.random()
    if depth and kind < 0.4:
        children = [random_space(rng, depth - 1) for _ in range(rng.integers(1, 4))]
        if kind < 0.25:
            # Not in the order of the alphabet.
            return spaces.Dict(dict(zip(["z", "a", "m"], children, strict=False)))
        return spaces.Tuple(children)
    return random_object(rng) if kind > 0.9 else random_numeric(rng)


def random_action_space(rng: Generator, *, nested: bool) -> spaces.Space[Any]:
    """What every face can send; nested where the face allows it."""
    kind = rng.integers(6 if nested else 4)
    if kind == 0:
        return spaces.Discrete(5)
    if kind == 1:
        return spaces.Box(-1, 1, (3,), np.float32)
    if kind == 2:
        return spaces.MultiDiscrete([3, 4])
    if kind == 3:
        return spaces.MultiBinary(4)
    if kind == 4:
        return spaces.Dict(go=spaces.Discrete(3), by=spaces.Box(-1, 1, (2,), np.float32))
    return spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])


def draw(space: spaces.Space[Any], rng: Generator, *, finite: bool) -> Any:
    """A value of a space; with `finite`, none that `check_nan` would find."""
    if isinstance(space, spaces.Box):
        return _draw_box(space, rng, finite)
    if isinstance(space, spaces.Discrete):
        return np.int64(space.start + rng.integers(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return (space.start + rng.random(space.nvec.shape) * space.nvec).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, space.shape, np.int8)
    if isinstance(space, spaces.Dict):
        return {key: draw(child, rng, finite=finite) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(draw(child, rng, finite=finite) for child in space.spaces)
    if isinstance(space, spaces.Text):
        return text(rng, int(rng.integers(1, space.max_length + 1)))
    if isinstance(space, spaces.Sequence):
        return tuple(draw(space.feature_space, rng, finite=finite) for _ in range(rng.integers(0, 4)))
    if isinstance(space, spaces.OneOf):
        which = int(rng.integers(len(space.spaces)))
        return np.int64(which), draw(space.spaces[which], rng, finite=finite)
    assert isinstance(space, spaces.Graph), space
    nodes, edges = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    return GraphInstance(
        rng.random((nodes, 2), np.float32), rng.integers(0, 3, edges), rng.integers(0, nodes, (edges, 2), np.int32)
    )


def _draw_box(space: spaces.Box, rng: Generator, finite: bool) -> Any:
    kind = space.dtype.kind
    if kind == "b":
        return rng.integers(0, 2, space.shape).astype(np.bool_)
    if kind in "iu":
        low, high = space.low.flat[0] if space.low.size else 0, space.high.flat[0] if space.high.size else 1
        return rng.integers(low, high, space.shape, space.dtype.type, endpoint=True)
    # 32 bits of mantissa would make narrower dtypes round up to the bound.
    value = np.asarray(rng.random(space.shape) * 0.99).astype(space.dtype)
    unbounded = value.size > 0 and np.isinf(space.high.flat[0])
    if unbounded and not finite and rng.random() < 0.2:
        value.flat[rng.integers(value.size)] = ODD[rng.integers(len(ODD))]
    return value


def text(rng: Generator, length: int) -> str:
    return "".join(LETTERS[i] for i in rng.integers(len(LETTERS), size=length))


def draw_actions(space: spaces.Space[Any], rng: Generator, num_envs: int) -> Any:
    """A batch of actions, in one of the forms that users send them in."""
    if isinstance(space, spaces.Dict):
        return {key: draw_actions(child, rng, num_envs) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(draw_actions(child, rng, num_envs) for child in space.spaces)
    single = [draw(space, rng, finite=True) for _ in range(num_envs)]
    form = rng.random()
    if form < 0.1:
        return single
    batch = np.stack(single)
    if form < 0.2 and isinstance(space, spaces.Discrete):
        return batch.tolist()
    if form < 0.3 and isinstance(space, spaces.Discrete):
        return batch.astype(np.uint8)
    if form < 0.3 and isinstance(space, spaces.Box):
        return batch.astype(np.float64)
    return batch
