"""Observations on their way into their rows: written exactly, or refused, never bent silently."""

from __future__ import annotations

import warnings
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fastvec._core.observations import ObservationWriter
from fastvec._core.structure import ArraySpec, DictNode, Leaf, TupleNode
from fastvec.errors import ObservationError

property_test = settings(deadline=None, database=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])

TREE = DictNode(
    ("image", "pair"),
    (
        Leaf(ArraySpec((2, 2), np.dtype("uint8")), ("image",)),
        TupleNode((Leaf(ArraySpec((), np.dtype("float32")), ("pair", 0)), Leaf(None, ("pair", 1)))),
    ),
)


def box(dtype, shape=(2,), *, rows=2, unsafe_casts=False):
    """A batch of single arrays, and the function that writes a row of it."""
    array = np.zeros((rows, *shape), dtype)
    writer = ObservationWriter(Leaf(ArraySpec(shape, array.dtype)), [array], unsafe_casts=unsafe_casts)
    return array, writer.writer()


def nested():
    arrays = [np.zeros((2, 2, 2), np.uint8), np.zeros(2, np.float32), None]
    return arrays, ObservationWriter(TREE, arrays, unsafe_casts=False)


@property_test
@given(st.data())
def test_an_array_of_the_declared_dtype_and_shape_is_written_bit_for_bit(data):
    """The common case leaves the row with the very bytes of the observation, and other rows alone."""
    dtype = data.draw(st.sampled_from(["?", "u1", "i4", "i8", "f2", "f4", "f8", "c8"]).map(np.dtype))
    shape = data.draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    observation = data.draw(npst.arrays(dtype, shape))
    array, write = box(dtype, shape)
    write(1, observation)
    assert array[1].tobytes() == observation.tobytes()
    assert not array[0].any()


@property_test
@given(
    values=st.lists(st.integers(-(2**63), 2**64 - 1), min_size=2, max_size=2),
    source=st.sampled_from(["i1", "u1", "i4", "u4", "i8", "u8"]).map(np.dtype),
    target=st.sampled_from(["i1", "u1", "i2", "u4", "i8", "u8"]).map(np.dtype),
)
def test_an_integer_is_written_as_it_is_or_not_at_all(values, source, target):
    """Between integer dtypes every value that fits is kept, and the first one that does not is an error."""
    observation = np.array([value % 2 ** (8 * source.itemsize) for value in values], np.uint64).astype(source)
    array, write = box(target)
    bounds = np.iinfo(target)
    if all(bounds.min <= int(value) <= bounds.max for value in observation):
        write(0, observation)
        assert array[0].tolist() == observation.tolist()
    else:
        with pytest.raises(ObservationError, match="with values that do not fit"):
            write(0, observation)
        assert not array.any()


@pytest.mark.parametrize(
    ("dtype", "observation", "stored"),
    [
        ("f4", [1, 2], [1.0, 2.0]),
        ("f4", (np.float32(1.5), 2), [1.5, 2.0]),
        ("i8", [3, 4], [3, 4]),
        ("u1", np.array([True, False]), [1, 0]),
        ("f8", np.array([0.5, 2], "f4"), [0.5, 2.0]),
        ("f4", np.array([1, 2], ">f4"), [1.0, 2.0]),
        ("c8", np.array([1, 2.0]), [1, 2]),
        ("?", [True, False], [True, False]),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore:the observation has dtype float64")
def test_what_casts_without_loss_is_cast(dtype, observation, stored):
    """Lists, narrower dtypes and other byte orders end as the declared dtype."""
    array, write = box(dtype)
    write(1, observation)
    assert array.tolist() == [[0, 0], stored]


@pytest.mark.parametrize("observation", [7, np.int64(7), np.array(7), np.array(7, "i4")], ids=repr)
def test_a_scalar_space_takes_python_and_numpy_numbers(observation):
    """Discrete observations may be an int, a NumPy integer or an array without dimensions."""
    array, write = box("i8", ())
    write(1, observation)
    assert array.tolist() == [0, 7]


@pytest.mark.parametrize(
    ("dtype", "observation", "text"),
    [
        ("f4", np.zeros(3, "f4"), "the observation must have shape (2,), got (3,)"),
        ("f4", np.float32(1), "the observation must have shape (2,), got ()"),
        ("f4", np.zeros((1, 2), "f4"), "the observation must have shape (2,), got (1, 2)"),
        ("f4", np.zeros((2, 1), "f4"), "the observation must have shape (2,), got (2, 1)"),
        ("f4", None, "the observation must have shape (2,), got ()"),
        ("u1", np.array([0.5, 1]), "the observation must have dtype uint8, got float64 (for example 0.5)"),
        ("?", np.array([0, 1]), "the observation must have dtype bool, got int64 (for example 0)"),
        ("f4", np.array([1j, 0]), "the observation must have dtype float32, got complex128 (for example 1j)"),
        ("f4", np.array(["a", "b"]), "the observation must have dtype float32, got <U1 (for example a)"),
        ("f4", [None, None], "the observation must have dtype float32, got object (for example None)"),
        ("u1", np.array([3, 256]), "got int64 with values that do not fit (for example 256)"),
        ("u8", np.array([-1, 3]), "got int64 with values that do not fit (for example -1)"),
        ("i8", np.array([3, 2**63], "u8"), f"got uint64 with values that do not fit (for example {2**63})"),
        ("f4", [[1, 2], [3]], "the observation cannot be made an array: "),
    ],
    ids=repr,
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(dtype, observation, text):
    """Wrong shapes are never broadcast, and a cast that would lose values is an error that shows one of them."""
    array, write = box(dtype)
    with pytest.raises(ObservationError) as caught:
        write(0, observation)
    assert text in str(caught.value)
    assert not array.any()


def test_the_error_says_how_to_cast_regardless():
    """Who wants the cast is told the option for it."""
    with pytest.raises(ObservationError, match="Return what the space declares, or pass unsafe_casts=True"):
        box("u1")[1](0, np.array([0.5, 1]))


def test_unsafe_casts_lose_what_plain_assignment_loses():
    """With the option, fractions go and integers wrap, as NumPy's assignment has it; shapes are still checked."""
    array, write = box("u1", unsafe_casts=True)
    write(0, np.array([3.9, 1.0]))
    write(1, np.array([257, -1]))
    assert array.tolist() == [[3, 1], [1, 255]]
    with pytest.raises(ObservationError, match="must have shape"):
        write(0, np.zeros(3))


@pytest.mark.parametrize("observation", [["a", "b"], [{}, 2]], ids=repr)
def test_unsafe_casts_of_what_is_no_number_are_still_an_observation_error(observation):
    """What no cast can make a number of is our error, with the place in it."""
    with pytest.raises(ObservationError):
        box("f4", unsafe_casts=True)[1](0, observation)


def test_rounding_is_told_once_for_each_leaf():
    """A float64 observation for a float32 space is rounded, and that is said the first time only."""
    array, write = box("f4")
    with pytest.warns(UserWarning, match="has dtype float64, but its space declares float32: it is rounded"):
        write(0, np.array([0.1, 0.2]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(1, np.array([0.1, 0.2]))
    np.testing.assert_array_equal(array, np.array([[0.1, 0.2]] * 2, "f4"))


@pytest.mark.parametrize(("dtype", "value"), [("f4", 2**24 + 1), ("f8", 2**53 + 1)])
def test_an_integer_that_a_float_cannot_hold_is_not_rounded_silently(dtype, value):
    """Integers beyond a float's precision are refused, or it is said that they are rounded."""
    _, write = box(dtype)
    with pytest.raises((ObservationError, UserWarning)):
        write(0, np.array([value, 0]))


def test_a_tree_is_written_leaf_by_leaf_and_objects_are_kept():
    """Arrays go to their rows, cast where need be; a leaf without a spec is kept as the object that it is."""
    arrays, writer = nested()
    text = ["anything"]
    writer.writer()(1, {"pair": (np.float16(0.5), text), "image": [[1, 2], [3, 4]], "undeclared": 1})
    assert arrays[0].tolist() == [[[0, 0], [0, 0]], [[1, 2], [3, 4]]]
    assert arrays[1].tolist() == [0.0, 0.5]
    assert list(writer.objects) == [(2, 1)]
    assert writer.objects[2, 1] is text


def test_an_observation_that_is_no_array_at_all_is_kept_as_an_object():
    """A space that is one leaf without a spec, such as Text, stores nothing and keeps the value."""
    writer = ObservationWriter(Leaf(None), [None], unsafe_casts=False)
    writer.writer()(0, "hello")
    assert writer.objects == {(0, 0): "hello"}


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"image": np.zeros((2, 2))}, "the observation must be a dict with the keys ['image', 'pair'], got the keys"),
        (
            {"image": np.zeros((2, 3), "u1"), "pair": (0, 0)},
            "the observation['image'] must have shape (2, 2), got (2, 3)",
        ),
        (
            {"image": np.zeros((2, 2), "u1"), "pair": ("x", 0)},
            "the observation['pair'][0] must have dtype float32, got <U1 (for example x)",
        ),
    ],
)
def test_an_error_in_a_tree_names_the_leaf(observation, text):
    """The message says where in the nested observation the mistake is."""
    _, writer = nested()
    with pytest.raises(ObservationError) as caught:
        writer.writer()(0, observation)
    assert text in str(caught.value)


PLAIN = DictNode(
    ("a", "b"), (Leaf(ArraySpec((2,), np.dtype("f4")), ("a",)), TupleNode((Leaf(ArraySpec((), np.dtype("i8"))),)))
)
A, B = np.zeros(2, "f4"), np.array(3)


@pytest.mark.parametrize(
    ("observation", "exact"),
    [
        ({"a": A, "b": (B,)}, True),
        ({"b": (B,), "a": A}, False),
        (OrderedDict(a=A, b=(B,)), False),
        ({"a": A, "b": (B,), "c": 1}, False),
        ({"a": A, "b": [B]}, False),
        ({"a": A, "b": (3,)}, False),
        ({"a": A, "b": (np.int64(3),)}, False),
        ({"a": A.astype("f8"), "b": (B,)}, False),
        ({"a": A[:1], "b": (B,)}, False),
        ({"a": np.ma.array(A), "b": (B,)}, False),
    ],
)
def test_exact_means_that_the_arrays_give_back_the_very_types(observation, exact):
    """Only plain containers of plain arrays of the declared dtypes can be rebuilt from the arrays as they were."""
    writer = ObservationWriter(PLAIN, [np.zeros((1, 2), "f4"), np.zeros(1, "i8")], unsafe_casts=False)
    assert writer.exact(observation) is exact


def test_an_observation_with_an_object_in_it_is_not_exact():
    """What the arrays do not hold cannot be rebuilt from them."""
    _, writer = nested()
    observation = {"image": np.zeros((2, 2), "u1"), "pair": (np.array(0, "f4"), "text")}
    assert writer.exact(observation) is False
