"""Batches of actions: what goes as an array, what goes as objects, and what is refused as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from fastvec._core.actions import check_actions
from fastvec._core.layout import ACTION_DTYPES
from fastvec._core.structure import ArraySpec, DictNode, Leaf, TupleNode
from fastvec.errors import ActionError


def box(dtype, shape=(2,), path=()):
    return Leaf(ArraySpec(shape, np.dtype(dtype)), path)


DISCRETE = box("i8", ())
NESTED = DictNode(("arm", "mode"), (box("f4", (2,), ("arm",)), TupleNode((box("i8", (), ("mode", 0)), Leaf(None)))))


@pytest.mark.parametrize("dtype", ACTION_DTYPES, ids=str)
def test_an_array_that_fits_travels_as_it_is_in_its_own_dtype(dtype):
    """No copy and no cast: the batch is the very array, with the code of its dtype."""
    actions = np.zeros((3, 2), dtype)
    batch = check_actions(actions, 3, box(dtype))
    assert batch.array is actions
    assert ACTION_DTYPES[batch.code] == dtype
    assert batch.objects == []


@pytest.mark.parametrize(
    ("given", "declared"),
    [("f8", "f4"), ("f4", "f8"), ("i8", "f4"), ("i8", "u1"), ("u1", "i8"), ("?", "i8"), ("i4", "i8")],
)
def test_a_dtype_that_casts_to_the_declared_one_is_accepted_unchanged(given, declared):
    """The environment gets the dtype that was given, as from a serial class."""
    actions = np.ones((3, 2), given)
    batch = check_actions(actions, 3, box(declared))
    assert batch.array is actions
    assert ACTION_DTYPES[batch.code] == np.dtype(given)


@pytest.mark.parametrize(("given", "declared"), [("i8", "?"), ("c8", "f4"), ("U1", "f4"), ("m8[s]", "f8")])
def test_a_dtype_that_does_not_cast_is_refused(given, declared):
    """Numbers for booleans and texts for numbers are an error that names both dtypes."""
    with pytest.raises(ActionError) as caught:
        check_actions(np.zeros((3, 2), given), 3, box(declared))
    text = f"actions must have dtype {np.dtype(declared)} or one that casts to it, got {np.dtype(given)}"
    assert str(caught.value) == text


@pytest.mark.parametrize(("given", "declared"), [("f4", "i8"), ("f8", "u1")])
def test_whole_numbers_may_come_as_floats(given, declared):
    """They are passed on as they are; a fraction is refused, by its value."""
    actions = np.ones((3, 2), given)
    assert check_actions(actions, 3, box(declared)).array is actions
    actions[1, 1] = 0.5
    with pytest.raises(ActionError) as caught:
        check_actions(actions, 3, box(declared))
    assert str(caught.value) == f"actions must be whole numbers ({np.dtype(declared)}), got 0.5"


@pytest.mark.parametrize("shape", [(2, 2), (4, 2), (3,), (3, 1), (3, 2, 1), (1, 2), (6,), (), (0, 2)], ids=str)
def test_a_wrong_shape_is_refused_and_never_broadcast(shape):
    """Length and shape must be those of the batch, and the message gives both."""
    with pytest.raises(ActionError) as caught:
        check_actions(np.zeros(shape, "f4"), 3, box("f4"))
    assert str(caught.value) == f"actions must have shape (3, 2), got {shape}"


@pytest.mark.parametrize("dtype", [">f4", np.longdouble, np.longlong, np.complex64], ids=str)
def test_an_array_of_a_dtype_without_a_code_travels_as_objects(dtype):
    """Other byte orders, and types of numbers that no code names, are sent row by row in their own dtype."""
    actions = np.zeros((3, 2), dtype)
    batch = check_actions(actions, 3, box(dtype))
    assert batch.array is None
    assert [(row.dtype, row.dtype.type) for row in batch.objects] == [(actions.dtype, actions.dtype.type)] * 3


def test_a_list_travels_as_the_objects_that_it_holds():
    """Each environment gets the very action of the list, whatever its type."""
    actions = [1, np.int64(2), np.array(0)]
    batch = check_actions(actions, 3, DISCRETE)
    assert batch.array is None
    assert all(one is two for one, two in zip(batch.objects, actions, strict=True))


def test_any_sequence_of_actions_serves():
    """Tuples, generators, object arrays and lists of lists are sequences of actions."""
    assert check_actions((0, 1, 2), 3, DISCRETE).objects == [0, 1, 2]
    assert check_actions((action for action in range(3)), 3, DISCRETE).objects == [0, 1, 2]
    assert check_actions([[0.5, 1], [1, 2], [2, 3]], 3, box("f4")).objects == [[0.5, 1], [1, 2], [2, 3]]
    objects = np.empty(3, object)
    objects[:] = [0, 1, 2]
    assert check_actions(objects, 3, DISCRETE).objects == [0, 1, 2]


def test_a_subclass_of_an_array_travels_row_by_row():
    """A masked array keeps its class on the way to the environments."""
    batch = check_actions(np.ma.zeros((3, 2)), 3, box("f4"))
    assert batch.array is None
    assert [type(row) for row in batch.objects] == [np.ma.MaskedArray] * 3


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        ([0, 1], "actions must be a sequence of 3 actions, one an environment: got 2"),
        ([], "actions must be a sequence of 3 actions, one an environment: got 0"),
        ({0: 0, 1: 1, 2: 2}, "actions must be a sequence of 3 actions, one an environment: got a dict"),
        ("012", "actions must be a sequence of 3 actions, one an environment: got a str"),
        (5, "actions must be an array or a sequence of 3 actions, got a int"),
        (None, "actions must be an array or a sequence of 3 actions, got a NoneType"),
        ([0, 1, 0.5], "the action of env 2 must be whole numbers (int64), got 0.5"),
        ([0, [1], 2], "the action of env 1 must have shape (), got (1,)"),
        ([[1, [2]], 0, 0], "the action of env 0 must have shape (), got [1, [2]]"),
        ([0, None, 0], "the action of env 1 must have dtype int64 or one that casts to it, got object"),
    ],
)
def test_a_wrong_sequence_is_refused_as_a_whole(actions, text):
    """The message says which environment's action is wrong, or how many there are."""
    with pytest.raises(ActionError) as caught:
        check_actions(actions, 3, DISCRETE)
    assert str(caught.value) == text


def test_nested_actions_travel_as_the_objects_that_they_are():
    """Dicts and tuples are checked and sent as they came."""
    actions = [{"arm": np.zeros(2, "f4"), "mode": (1, "any")}, {"mode": [0, None], "arm": [0, 1], "extra": 1}]
    batch = check_actions(actions, 2, NESTED)
    assert batch.array is None
    assert all(one is two for one, two in zip(batch.objects, actions, strict=True))


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ({"arm": np.zeros(2)}, "the action of env 1 must be a dict with the keys ['arm', 'mode'], got {'arm'"),
        (3, "the action of env 1 must be a dict with the keys ['arm', 'mode'], got 3"),
        ({"arm": np.zeros(3), "mode": (0, 0)}, "the action of env 1['arm'] must have shape (2,), got (3,)"),
        ({"arm": np.zeros(2), "mode": (0.5, 0)}, "the action of env 1['mode'][0] must be whole numbers (int64)"),
        ({"arm": np.zeros(2), "mode": (0,)}, "the action of env 1 must be a tuple of 2 elements, got (0,)"),
        ({"arm": np.zeros(2), "mode": 0}, "the action of env 1 must be a tuple of 2 elements, got 0"),
    ],
)
def test_an_error_in_a_nested_action_names_the_place(action, text):
    """The message says which environment's action is wrong, and where in it."""
    with pytest.raises(ActionError) as caught:
        check_actions([{"arm": np.zeros(2), "mode": (0, 0)}, action], 2, NESTED)
    assert text in str(caught.value)


def test_a_batched_dict_is_refused():
    """One dict of arrays is not a sequence of dicts."""
    with pytest.raises(ActionError, match="must be a sequence of 2 actions, one an environment: got a dict"):
        check_actions({"arm": np.zeros((2, 2)), "mode": np.zeros(2)}, 2, NESTED)


def test_actions_of_a_space_without_arrays_are_only_counted():
    """What the engine knows nothing of it passes on, one for each environment."""
    assert check_actions(["left", None], 2, Leaf(None)).objects == ["left", None]
    with pytest.raises(ActionError, match="sequence of 2 actions, one an environment: got 1"):
        check_actions(["left"], 2, Leaf(None))
