"""Infos through the cells: what comes back is what went in, value by value and type by type."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fastvec._core.infos import EMPTY, MAX_SCHEMAS, WHOLE, InfoReader, InfoSchema, InfoWriter
from fastvec._core.layout import INFO_CELLS
from fastvec._core.pickles import freeze
from fastvec.errors import InfoError

property_test = settings(deadline=None, database=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

#: What a worker does with the rest of an info, and what the engine without processes does.
WAYS = {"pickled": (freeze, pickle.loads), "copied": (copy.deepcopy, lambda frozen: frozen)}


class Cells:
    """Rows of the block for some environments, with the writer on one side and the reader on the other."""

    def __init__(self, rows=1, way="pickled"):
        freeze, thaw = WAYS[way]
        self.codes = np.zeros(rows, np.int32)
        self.cells = np.full((rows, INFO_CELLS), np.nan)
        self.writer = InfoWriter(self.codes, self.cells, freeze)
        self.reader = InfoReader(self.codes, self.cells, thaw)

    def write(self, infos):
        """Write one info a row; the frozen rests of those that have one."""
        rests = {}
        for row, info in enumerate(infos):
            rest = self.writer.write(row, info)
            if rest is not None:
                rests[row] = rest
        # A schema crosses to another process before it is used there.
        self.reader.learn(pickle.loads(pickle.dumps(self.writer.take_new())))
        return rests

    def trip(self, infos):
        return self.reader.read(self.write(infos))

    def overwrite(self):
        self.codes[...] = 77
        self.cells.view(np.uint8)[...] = 0xA5


def same(one, two):
    """Whether two values are equal in every way that a user can see: types, order of keys, bytes, signs of zeros."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return len(one) == len(two) and all(
            same(pair, twin) for pair, twin in zip(one.items(), two.items(), strict=True)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    if isinstance(one, (float, np.floating)):
        return (np.isnan(one) and np.isnan(two)) or (one == two and np.signbit(one) == np.signbit(two))
    if isinstance(one, (complex, np.complexfloating)):
        return same(one.real, two.real) and same(one.imag, two.imag)
    return bool(one == two)


def numpy_scalars(*types):
    return st.one_of(*(npst.from_dtype(np.dtype(kind)).map(kind) for kind in types))


def integers_of(kind):
    info = np.iinfo(kind)
    return st.sampled_from([info.min, info.max]).map(kind) | st.integers(int(info.min), int(info.max)).map(kind)


floats = st.floats() | st.sampled_from([-0.0, math.inf, -math.inf, math.nan, 5e-324])
arrays = npst.arrays(
    st.sampled_from(["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", ">i2", ">f8", "U3", "S2"]).map(np.dtype),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6),
)
#: What a cell holds.
numbers = [
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**63 - 1, -(2**63)]),
    floats,
    *(integers_of(k) for k in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)),
    st.booleans().map(np.bool_),
    floats.map(np.float64),
    numpy_scalars(np.float16, np.float32),
]
#: The same; a pickle, NumPy's own, makes another type of the same width of them.
twins = [integers_of(np.longlong), integers_of(np.ulonglong)]
#: What needs a pickle.
others = [
    st.none(),
    st.integers() | st.sampled_from([2**63, 2**64, -(2**63) - 1, 10**30]),
    st.text(max_size=5) | st.text(max_size=5).map(np.str_) | st.binary(max_size=5),
    st.complex_numbers() | numpy_scalars(np.complex64) | floats.map(np.longdouble),
]
inner = st.one_of(st.none(), st.integers(), floats, st.booleans().map(np.bool_), st.text(max_size=3), arrays)
nested = st.lists(inner, max_size=2) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
kinds_of_values = [*numbers, *others, arrays, arrays, nested, nested.map(lambda value: [value])]
# No two of these are equal without being of one type: see the test of equal keys.
keys = st.text("abcé_", max_size=3) | st.integers(2, 9) | st.tuples(st.text("ab", max_size=1), st.integers(2, 3))


@st.composite
def batches(draw, rows):
    """Some steps of ``rows`` infos each, of one or two kinds, so that kinds come again with other values."""
    kind = st.dictionaries(keys, st.sampled_from(kinds_of_values), max_size=4)
    kinds = draw(st.lists(kind, min_size=1, max_size=2))
    steps = []
    for _ in range(draw(st.integers(1, 3))):
        steps.append([])
        for _ in range(rows):
            kind = draw(st.sampled_from(kinds))
            order = list(kind) if draw(st.booleans()) else draw(st.permutations(list(kind)))
            steps[-1].append({key: draw(kind[key]) for key in order})
    return steps


@property_test
@given(steps=st.integers(1, 3).flatmap(lambda rows: batches(rows)), way=st.sampled_from(sorted(WAYS)))
def test_infos_come_back_as_they_went(steps, way):
    """Any dicts, step after step, come back with their keys in order, their values, and the very types of these."""
    cells = Cells(len(steps[0]), way)
    for infos in steps:
        back = cells.trip(infos)
        assert all(same(one, two) for one, two in zip(infos, back, strict=True)), (infos, back)


@property_test
@given(infos=batches(2).map(lambda steps: steps[0]), way=st.sampled_from(sorted(WAYS)))
def test_what_comes_back_does_not_alias_the_cells(infos, way):
    """After the cells have been overwritten, infos that were read before are what they were."""
    cells = Cells(2, way)
    back = cells.trip(infos)
    cells.overwrite()
    assert all(same(one, two) for one, two in zip(infos, back, strict=True)), (infos, back)


@property_test
@given(st.lists(st.one_of(*numbers, *twins), min_size=1, max_size=12), st.integers(0, INFO_CELLS - 12))
def test_numbers_need_no_pickle(values, more):
    """As many numbers as there are cells, of every type, come back without anything being pickled."""
    info = {**dict(enumerate(values)), **{f"more{index}": float(index) for index in range(more)}}
    cells = Cells()
    assert cells.write([info]) == {}
    assert same(cells.reader.read({}), [info])
    # And a second time, when the kind is known.
    assert cells.write([info]) == {}
    assert same(cells.reader.read({}), [info])


@pytest.mark.parametrize("way", WAYS)
def test_an_environment_may_refill_what_it_returned(way):
    """Arrays and lists that change after the write do not change what is read."""
    cells = Cells(way=way)
    info = {"column": np.arange(3.0), "rest": np.array(["a"]), "list": [1, [2]]}
    rests = cells.write([info])
    info["column"][...] = -1
    info["rest"][...] = "z"
    info["list"][1].append(3)
    (back,) = cells.reader.read(rests)
    assert same(back, {"column": np.arange(3.0), "rest": np.array(["a"]), "list": [1, [2]]})


def test_arrays_that_come_back_are_the_callers():
    """An array out of the cells owns its memory, can be written to, and is shared by no two rows."""
    cells = Cells(2)
    first, second = cells.trip([{"a": np.zeros(3, np.int16)}, {"a": np.zeros(3, np.int16)}])
    first["a"][0] = 5
    assert first["a"].flags.owndata
    assert second["a"].tolist() == [0, 0, 0]
    assert cells.reader.read({})[0]["a"].tolist() == [0, 0, 0]


def test_dicts_that_come_back_are_fresh_at_every_read():
    """Reading twice gives two dicts, also of empty infos."""
    cells = Cells(2)
    once, twice = cells.trip([{}, {"a": 1.0}]), cells.reader.read({})
    once[0]["mine"] = once[1]["mine"] = 1
    assert twice == [{}, {"a": 1.0}]
    assert cells.reader.read({}) == [{}, {"a": 1.0}]


def test_empty_infos_cost_nothing():
    """An empty dict has a code of its own, no schema and no rest."""
    cells = Cells(2)
    assert cells.write([{}, {}]) == {}
    assert cells.codes.tolist() == [EMPTY, EMPTY]
    assert cells.reader.read({}) == [{}, {}]


def test_a_schema_is_announced_once():
    """Infos of one kind, from whichever row, share the schema that the first of them made."""
    cells = Cells(2)
    cells.writer.write(0, {"x": 1.0, "y": 2})
    (schema,) = cells.writer.take_new()
    assert schema.signature == (("x", float, None), ("y", int, None))
    cells.writer.write(1, {"x": 3.0, "y": 4})
    cells.writer.write(0, {"x": 5.0, "y": 6})
    assert cells.writer.take_new() == []
    assert cells.codes.tolist() == [schema.number, schema.number]


def test_another_type_under_a_key_is_another_kind():
    """A number that is a float at one step and an int, a NumPy float or a bool at the next keeps its type."""
    cells = Cells()
    for value in (1.0, 1, np.float64(1), True, np.bool_(True), np.float32(1), np.int64(1), np.longlong(1), 1.0):
        (back,) = cells.trip([{"x": value}])
        assert type(back["x"]) is type(value)
        assert back["x"] == value


def test_another_shape_or_dtype_of_an_array_is_another_kind():
    """Arrays may change from step to step."""
    cells = Cells()
    for array in (np.zeros(3), np.zeros((3, 1)), np.zeros(4), np.zeros(3, "f4"), np.zeros(3, ">f8"), np.zeros(3)):
        (back,) = cells.trip([{"a": array}])
        assert same(back["a"], array)


def test_rows_of_different_kinds_are_told_apart():
    """In one batch, each row is read by its own schema, and an empty row stays empty."""
    infos = [{"x": 1.0}, {}, {"y": 2}, {"x": 3.0}, {"text": "only"}, {"y": np.arange(2)}]
    cells = Cells(len(infos))
    for shift in range(len(infos)):
        rotated = infos[shift:] + infos[:shift]
        assert all(map(same, cells.trip(rotated), rotated))


def test_the_rest_keeps_its_place_among_the_numbers():
    """Strings before, between and after numbers come back where they were."""
    cells = Cells()
    for order in itertools.permutations({"a": 1.0, "b": "text", "c": 2, "d": None}.items()):
        (back,) = cells.trip([dict(order)])
        assert list(back.items()) == list(order)


def test_an_integer_beyond_64_bits_travels_whole():
    """When a column meets a number that its cell cannot hold, that info is pickled, and the next is not."""
    cells = Cells()
    assert cells.trip([{"n": 5, "x": 0.5}]) == [{"n": 5, "x": 0.5}]
    rests = cells.write([{"n": 2**64, "x": 0.5}])
    assert cells.codes.tolist() == [WHOLE]
    assert cells.reader.read(rests) == [{"n": 2**64, "x": 0.5}]
    assert cells.write([{"n": 6, "x": 0.5}]) == {}
    assert cells.reader.read({}) == [{"n": 6, "x": 0.5}]


def test_what_does_not_fit_the_cells_is_a_rest():
    """An array larger than a row of cells travels as a pickle, beside numbers that do fit."""
    cells = Cells()
    info = {"large": np.arange(INFO_CELLS + 1.0), "small": 1.0, "exact": np.arange(INFO_CELLS - 1.0)}
    rests = cells.write([info])
    assert list(rests) == [0]
    assert list(pickle.loads(rests[0]).items) == ["large"]
    assert same(cells.reader.read(rests)[0], info)


def test_keys_that_change_at_every_step_do_not_fill_the_memory():
    """Beyond a number of kinds no more is learned: infos of a new kind travel whole, of known kinds as before."""
    cells = Cells()
    for step in range(MAX_SCHEMAS + 20):
        assert cells.trip([{f"key{step}": step}]) == [{f"key{step}": step}]
        assert (cells.codes[0] == WHOLE) == (step >= MAX_SCHEMAS)
    assert cells.write([{"key0": 5}]) == {}
    assert cells.reader.read({}) == [{"key0": 5}]


@pytest.mark.parametrize("info", [None, 5, [("a", 1.0)], "text", []], ids=repr)
def test_an_info_that_is_no_dict_is_refused(info):
    """What a step must not return as an info is an InfoError that shows it."""
    with pytest.raises(InfoError, match="an info must be a dict, got .* of type " + type(info).__name__):
        Cells().writer.write(0, info)


@pytest.mark.parametrize("info", [None, 5, ["x"], "x"], ids=repr)
def test_an_info_that_is_no_dict_is_refused_after_others_that_were(info):
    """The same holds at any later step."""
    cells = Cells()
    cells.write([{"x": 1.0}])
    with pytest.raises(InfoError, match="an info must be a dict"):
        cells.writer.write(0, info)


def test_an_array_is_refused_as_an_info():
    """An environment that returns an array as its info hears of that."""
    with pytest.raises(InfoError, match="an info must be a dict"):
        Cells().writer.write(0, np.zeros(2))


@pytest.mark.parametrize(("first", "second"), [(2, 2.0), (1, True)], ids=repr)
def test_keys_that_are_equal_but_of_different_types_keep_their_types(first, second):
    """A key comes back as what it was, also where an equal one has been seen before."""
    cells = Cells()
    cells.trip([{first: 1.0}])
    (back,) = cells.trip([{second: 1.0}])
    assert [type(key) for key in back] == [type(second)]


def test_a_value_that_cannot_be_sent_is_named():
    """Of an info with an open lock in it, the error tells the key."""
    with pytest.raises(InfoError, match=r"info\['guard'\] cannot be sent to the parent process: a lock cannot be"):
        Cells().writer.write(0, {"x": 1.0, "fine": "text", "guard": threading.Lock()})


def test_a_subclass_of_a_number_keeps_its_class():
    """Only the exact types are columns: an enum member is still one when it comes back."""
    cells = Cells()
    (back,) = cells.trip([{"method": Cells, "code": Answer(7)}])
    assert back["method"] is Cells
    assert type(back["code"]) is Answer
    assert back["code"] == 7


class Answer(int):
    """An integer with a meaning."""


def test_a_schema_knows_the_cells_that_it_takes():
    """Scalars take a cell each, arrays as many as their bytes need."""
    schema = InfoSchema(1, (("a", float, None), ("b", np.dtype("i2"), (5,)), ("c", bool, None)))
    assert schema.cells == 1 + 2 + 1
    assert [column.cell for column in schema.columns] == [0, 1, 3]
    twin = pickle.loads(pickle.dumps(schema))
    assert (twin.number, twin.signature, twin.cells) == (schema.number, schema.signature, schema.cells)
