"""Trees of arrays: taking nested values apart and putting them together again."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastvec._core.structure import ArraySpec, DictNode, Leaf, TupleNode, build, leaves, lookup, path_text
from fastvec.errors import ObservationError

property_test = settings(deadline=None, database=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])

IMAGE = Leaf(ArraySpec((2, 3), np.dtype("uint8")), ("camera", "image"))
DEPTH = Leaf(ArraySpec((), np.dtype("float32")), ("camera", "depth"))
JOINTS = Leaf(ArraySpec((4,), np.dtype("float64")), ("joints", 0))
TEXT = Leaf(None, ("joints", 1))
TREE = DictNode(("camera", "joints"), (DictNode(("image", "depth"), (IMAGE, DEPTH)), TupleNode((JOINTS, TEXT))))


def trees(path=()):
    """Trees of up to a few levels, whose leaves know where they are."""
    return st.deferred(lambda: st.one_of(st.just(Leaf(None, path)), dict_nodes(path), tuple_nodes(path)))


def dict_nodes(path):
    if len(path) == 3:
        return st.just(Leaf(None, path))
    names = st.lists(st.text("abc", max_size=2), max_size=3, unique=True)
    return names.flatmap(
        lambda keys: st.tuples(*(trees((*path, key)) for key in keys)).map(lambda nodes: DictNode(tuple(keys), nodes))
    )


def tuple_nodes(path):
    if len(path) == 3:
        return st.just(Leaf(None, path))
    return st.integers(0, 3).flatmap(
        lambda size: st.tuples(*(trees((*path, index)) for index in range(size))).map(TupleNode)
    )


def test_a_spec_knows_its_size():
    """Elements and bytes follow from shape and dtype; a scalar has one element, an empty shape none."""
    assert (IMAGE.spec.size, IMAGE.spec.nbytes) == (6, 6)
    assert (DEPTH.spec.size, DEPTH.spec.nbytes) == (1, 4)
    assert (ArraySpec((3, 0), np.dtype("int64")).size, ArraySpec((3, 0), np.dtype("int64")).nbytes) == (0, 0)
    assert type(IMAGE.spec.size) is int


def test_the_size_of_a_large_spec_does_not_overflow():
    """Shapes whose product exceeds 32 bits are counted right."""
    assert ArraySpec((1 << 20, 1 << 20), np.dtype("float64")).nbytes == 1 << 43


def test_leaves_come_depth_first():
    """The order of the leaves is the order of the declaration."""
    assert list(leaves(TREE)) == [IMAGE, DEPTH, JOINTS, TEXT]
    assert list(leaves(IMAGE)) == [IMAGE]
    assert list(leaves(TupleNode(()))) == []


def test_build_assembles_plain_containers():
    """Leaf values in order become dicts with the declared order of keys, and tuples."""
    value = build(TREE, iter([1, 2, 3, 4]))
    assert value == {"camera": {"image": 1, "depth": 2}, "joints": (3, 4)}
    assert list(value) == ["camera", "joints"]
    assert type(value["joints"]) is tuple


@property_test
@given(trees())
def test_lookup_takes_apart_what_build_has_assembled(tree):
    """For any tree, the values looked up in a built observation are those that it was built from."""
    values = [object() for _ in leaves(tree)]
    observation = build(tree, iter(values))
    assert list(lookup(observation, tree, "the observation")) == values


@property_test
@given(trees())
def test_each_leaf_knows_its_path(tree):
    """Following a leaf's path through a built observation leads to that leaf's value."""
    found = list(leaves(tree))
    observation = build(tree, iter(found))
    for leaf in found:
        value = observation
        for key in leaf.path:
            value = value[key]
        assert value is leaf


def test_lookup_leaves_out_undeclared_keys_and_does_not_mind_the_order():
    """Any mapping with the declared keys will do, and lists serve as tuples."""
    observation = OrderedDict(joints=[3, 4], debug="x", camera={"depth": 2, "image": 1, "more": 0})
    assert list(lookup(observation, TREE, "the observation")) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"camera": {}}, "the observation must be a dict with the keys ['camera', 'joints'], got the keys ['camera']"),
        (
            {"camera": {"image": 1}, "joints": (3, 4)},
            "the observation['camera'] must be a dict with the keys ['image', 'depth'], got the keys ['image']",
        ),
        (
            {"camera": {"image": 1, "depth": 2}, "joints": (3,)},
            "the observation['joints'] must be a tuple of 2 elements, got 1 elements",
        ),
        (
            {"camera": {"image": 1, "depth": 2}, "joints": np.zeros(2)},
            "the observation['joints'] must be a tuple of 2 elements, got a ndarray",
        ),
        (None, "the observation must be a dict with the keys ['camera', 'joints'], got a NoneType"),
        (np.zeros(3), "the observation must be a dict with the keys ['camera', 'joints'], got a ndarray"),
        ([1, 2], "the observation must be a dict with the keys ['camera', 'joints'], got a list"),
    ],
)
def test_lookup_says_where_an_observation_departs_from_its_space(observation, text):
    """A missing key, a missing element or another kind of container is an error that names the place."""
    with pytest.raises(ObservationError) as caught:
        list(lookup(observation, TREE, "the observation"))
    assert str(caught.value) == text


def test_a_path_reads_like_the_expression_for_it():
    """Errors name a leaf as one would write it in Python."""
    assert path_text(("camera", 0)) == "observation['camera'][0]"
    assert path_text((), "the action of env 3") == "the action of env 3"
