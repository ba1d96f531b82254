"""Infos from the format of Gymnasium's vector environments to a list of dicts and back, without loss."""

from __future__ import annotations

import functools
from collections import OrderedDict
from enum import IntEnum

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from test_engine import SPACES, assert_same
from toys import SampledEnv

from fastvec import SharedMemVectorEnv, errors, infos_to_dict, infos_to_list

BOX = spaces.Box(-1, 1, (2,), np.float32)


class Level(IntEnum):
    LOW = 1


def plain(number):
    return number.item() if isinstance(number, (np.generic, np.ndarray)) else number


def assert_equal(one, two):
    """Equal in keys and exactly in values; bools are bools, arrays arrays, and the order of keys is free."""
    if isinstance(two, dict):
        assert type(one) is dict
        assert one.keys() == two.keys()
        for key in two:
            assert_equal(one[key], two[key])
    elif isinstance(two, np.ndarray) and two.ndim:
        assert one.shape == two.shape
        assert (one.dtype.kind in "OUSMm") == (two.dtype.kind in "OUSMm")
        for a, b in zip(one.ravel().tolist(), two.ravel().tolist(), strict=True):
            assert_equal(a, b)
    elif isinstance(two, (tuple, list)):
        assert type(one) is type(two)
        for a, b in zip(one, two, strict=True):
            assert_equal(a, b)
    else:
        a, b = plain(one), plain(two)
        assert isinstance(a, bool) == isinstance(b, bool)
        assert a == b or (a != a and b != b)


NAMES = ("?", "i1", "u2", "i4", "u8", "i8", "f2", "f4", ">f8", "f8", "c8", "U3", "S2", "M8[s]", "m8[ms]")
DTYPES = st.sampled_from([np.dtype(name) for name in NAMES])
NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([2**53 + 1, -(2**53) - 1, 2**63, 2**64 - 1, -(2**63), 2**80, Level.LOW]),
    st.floats(),
    st.booleans(),
    st.complex_numbers(),
    DTYPES.flatmap(npst.from_dtype),
)
VALUES = st.one_of(
    NUMBERS,
    NUMBERS,
    st.none(),
    st.text(max_size=3),
    st.lists(st.integers(0, 3), max_size=3),
    st.tuples(st.integers(0, 3), st.floats()),
    DTYPES.flatmap(lambda dtype: npst.arrays(dtype, st.sampled_from([(), (2,), (3,), (2, 1), (0,)]))),
    st.just(np.array([{"x": 1}, None], object)),
)
#: None of which is the name of another's mask.
KEYS = st.sampled_from(["a", "__a", "b", "_private", "", 1, "final_obs", "final_info", "TimeLimit.truncated"])
INFOS = st.recursive(VALUES, lambda values: st.dictionaries(KEYS, values, max_size=4), max_leaves=8)


@given(st.lists(st.dictionaries(KEYS, INFOS, max_size=5), min_size=1, max_size=4))
def test_a_list_comes_back_from_a_dict(infos):
    """Whatever environments tell: sparse keys, dicts in dicts, numbers of every type beside each other, objects."""
    assert_equal_lists(infos_to_list(infos_to_dict(infos), len(infos)), infos)


@given(st.lists(st.fixed_dictionaries({"x": VALUES}), min_size=2, max_size=3))
def test_values_under_one_key_come_back(infos):
    """Of whatever types the others are."""
    assert_equal_lists(infos_to_list(infos_to_dict(infos), len(infos)), infos)


def assert_equal_lists(one, two):
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        assert_equal(a, b)


@pytest.mark.parametrize(
    ("values", "dtype", "types"),
    [
        ([1, 2], np.int64, [np.int64] * 2),
        ([1, 1.5], np.float64, [np.float64] * 2),
        ([1.0, np.float32(1)], np.float64, [np.float64] * 2),
        ([np.float32(1), np.float32(2)], np.float32, [np.float32] * 2),
        ([np.uint8(1), np.uint8(2)], np.uint8, [np.uint8] * 2),
        ([True, False], np.bool_, [bool] * 2),
        ([np.True_, np.False_], object, [np.bool_] * 2),
        ([True, np.False_], np.bool_, [bool] * 2),
        ([True, 2], object, [bool, int]),
        ([2**53 + 1, 0.5], object, [int, float]),
        ([2**64, 1], object, [int, int]),
        ([Level.LOW, 1], object, [Level, int]),
        ([np.timedelta64(1, "s"), np.timedelta64(2, "s")], object, [np.timedelta64] * 2),
        ([None, "a"], object, [type(None), str]),
        ([[1], (1, 2)], object, [list, tuple]),
        ([np.ones(2), np.ones(3)], object, [np.ndarray] * 2),
        ([np.array([2**53 + 1]), np.array([0.5])], object, [np.ndarray] * 2),
        ([np.array([2, 3]), np.array([0.5, np.nan])], np.float64, [np.ndarray] * 2),
        ([np.array(1), np.array(2)], np.int64, [np.int64] * 2),
        ([{"y": 1}, 2], object, [dict, int]),
    ],
)
def test_what_becomes_of_types(values, dtype, types):
    """The array's dtype, and the types that come back; what has no common dtype stays the object that it is."""
    infos = [{"x": value} for value in values]
    there = infos_to_dict(infos)
    assert list(there) == ["x", "_x"]
    assert there["x"].dtype == dtype
    back = infos_to_list(there, 2)
    assert [type(info["x"]) for info in back] == types
    assert_equal_lists(back, infos)
    if dtype is object:
        assert [info["x"] is value for info, value in zip(back, values, strict=True)] == [True, True]


def test_both_formats_by_an_example():
    """Masks, zeros and None for who has nothing to say, dicts in dicts, and no final_obs that is taken apart."""
    listed = [
        {"speed": 1.5, "_raw": "x", "episode": {"r": 2.0, "more": {}}},
        {},
        {"final_obs": {"image": 1}, "episode": OrderedDict(l=3)},
    ]
    there = infos_to_dict(listed)
    none = np.array([False] * 3)
    assert_same(
        there,
        {
            "speed": np.array([1.5, 0, 0]),
            "_speed": np.array([True, False, False]),
            "_raw": np.array(["x", None, None], object),
            "__raw": np.array([True, False, False]),
            "episode": {
                "r": np.array([2.0, 0, 0]),
                "_r": np.array([True, False, False]),
                "more": {},
                "_more": np.array([True, False, False]),
                "l": np.array([0, 0, 3]),
                "_l": np.array([False, False, True]),
            },
            "_episode": np.array([True, False, True]),
            "final_obs": np.array([None, None, {"image": 1}], object),
            "_final_obs": np.array([False, False, True]),
        },
    )
    assert infos_to_list(there, 3) == listed
    assert infos_to_list({}, 2) == [{}, {}]
    assert infos_to_dict([{}, {}]) == infos_to_dict([]) == {}
    assert infos_to_list({"x": np.arange(3), "_x": none}, 3) == [{}, {}, {}]
    assert infos_to_list({"x": np.arange(3)}, 3) == [{"x": 0}, {"x": 1}, {"x": 2}]


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("space", ["dict", "text", "box"])
def test_infos_of_real_environments_are_converted_as_gymnasium_converts_them(mode, space):
    """Over some episodes, in each mode, final infos included; and what was a dict is the same dict again."""
    fns = [functools.partial(SampledEnv, SPACES[space], BOX, i) for i in range(4)]
    with SharedMemVectorEnv(fns, autoreset_mode=mode, num_workers=2, start_method="fork") as venv:
        gymnasiums = DictInfoToList(SyncVectorEnv(fns, autoreset_mode=mode))
        venv.action_space.seed(0)
        infos, wanted = venv.reset(seed=1)[1], gymnasiums.reset(seed=1)[1]
        for _ in range(30):
            listed = infos_to_list(infos, 4)
            assert_equal_lists(listed, wanted)
            assert_same(infos_to_dict(listed), infos)
            actions = venv.action_space.sample()
            *_, terminations, truncations, infos = venv.step(actions)
            wanted = gymnasiums.step(actions)[4]
            ended = terminations | truncations
            if mode is AutoresetMode.DISABLED and ended.any():
                infos = venv.reset(options={"reset_mask": ended})[1]
                wanted = gymnasiums.reset(options={"reset_mask": ended})[1]
        gymnasiums.close()


def test_statistics_without_masks_of_their_own():
    """RecordEpisodeStatistics has masks for whole episodes only: who ended has all of their keys."""
    venv = RecordEpisodeStatistics(SharedMemVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, num_workers=0))
    venv.reset(seed=0)
    found = []
    for _ in range(60):
        infos = venv.step(np.ones(3, int))[4]
        found += [info for info in infos_to_list(infos, 3) if info]
    assert len(found) > 5
    assert all(list(info) == ["episode"] and set(info["episode"]) == {"r", "l", "t"} for info in found)
    assert all(info["episode"]["r"] == info["episode"]["l"] > 5 for info in found)
    venv.close()


@pytest.mark.parametrize(
    ("infos", "text"),
    [
        ([{"a": 1}, {"_a": 2}], "the key '_a', which would be the mask of their key 'a'"),
        ([{"x": {"_a": 1, "a": 2}}], "the key '_a', which would be the mask of their key 'a'"),
        ([{1: 1}, {"1": 2}], "the keys 1 and '1', whose masks would both be '_1'"),
    ],
)
def test_keys_that_would_be_masks_are_refused(infos, text):
    """The error names both, wherever they are."""
    with pytest.raises(errors.InfoError, match=text):
        infos_to_dict(infos)


@pytest.mark.parametrize(
    ("infos", "text"),
    [
        ({"x": np.zeros(2)}, r"infos\['x'\] must have a row for each of 3 environments, got 2"),
        ({"x": np.zeros(3), "_x": [True]}, r"infos\['_x'\] must have a row for each of 3 environments, got 1"),
        ({"x": {"y": 5}}, r"infos\['y'\] must have a row for each of 3 environments, got a int"),
    ],
)
def test_what_has_no_row_for_each_is_refused(infos, text):
    """The error names the key and what was expected."""
    with pytest.raises(errors.InfoError, match=text):
        infos_to_list(infos, 3)
