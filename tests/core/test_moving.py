"""What an environment takes along to another worker."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from fastvec._core.moving import (
    generators_to_come,
    global_generators,
    restore_global_generators,
    take_along,
    take_over,
)

NESTED = spaces.Dict(
    a=spaces.Tuple([spaces.Discrete(99), spaces.Box(0, 1)]),
    b=spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(9)),
    c=spaces.OneOf([spaces.Discrete(9), spaces.Text(5)]),
    d=spaces.Sequence(spaces.MultiDiscrete([3, 4])),
)


class Env(gymnasium.Env):
    def __init__(self):
        self.observation_space, self.action_space = spaces.Box(0, 1), spaces.Discrete(2)
        self.secret = 1


class Layer(gymnasium.Wrapper):
    def __init__(self, env, **attributes):
        super().__init__(env)
        vars(self).update(attributes)


def test_spaces_of_every_kind_go_on_with_their_samples():
    """Composite ones with all of their parts, wherever they are drawn from next."""
    one, two = (Layer(Env(), action_space=copy.deepcopy(NESTED)) for _ in range(2))
    one.action_space.seed(4)
    one.action_space.sample()
    two.action_space.seed(9)
    take_over(two, take_along(one))
    for _ in range(3):
        first, second = one.action_space.sample(), two.action_space.sample()
        assert repr(first) == repr(second)


def test_the_environment_itself_takes_its_generator_only():
    """What it holds may be a handle of its own process."""
    one, two = Env(), Env()
    one.reset(seed=5)
    one.secret = 2
    take_over(two, take_along(one))
    assert two.secret == 1
    assert two.np_random.random() == one.np_random.random()


@pytest.mark.parametrize(
    ("value", "goes"),
    [
        (3, True),
        ("text", True),
        ([1, {"a": (2.0, None)}], True),
        (np.arange(3), True),
        (np.arange(3)[1:], True),
        (np.array([None]), False),
        (np.frombuffer(b"abc", np.uint8), False),
        (open, False),
        (lambda: 3, False),
        ([open], False),
    ],
)
def test_plain_data_of_wrappers_goes(value, goes):
    """And nothing else."""
    one, two = Layer(Env(), it=value), Layer(Env(), it="before")
    take_over(two, take_along(one))
    assert (repr(two.it) == repr(value)) == goes
    assert goes or two.it == "before"


def test_what_refers_to_each_other_still_does():
    """Arrays keep their identity in the new environment, other values theirs to each other."""
    shared = [1]
    array = np.zeros(2)
    one = Layer(Env(), a=shared, b=shared, array=np.ones(2))
    two = Layer(Env(), a=None, b=None, array=array)
    take_over(two, take_along(one))
    assert two.a is two.b
    assert two.array is array
    assert array.tolist() == [1, 1]


def test_generators_to_come_follow_and_do_not_repeat():
    """The same for the same state; other draws than that state's own."""
    np.random.seed(1)
    before = global_generators()
    first = generators_to_come()
    assert repr(generators_to_come()) == repr(first)
    own = [np.random.random() for _ in range(5)]
    restore_global_generators(first)
    assert not set(own) & {np.random.random() for _ in range(5)}
    restore_global_generators(before)
    assert [np.random.random() for _ in range(5)] == own
