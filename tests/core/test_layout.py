"""The regions of the shared block: where they lie, and that none touches another."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastvec._core.layout import ACTION_DTYPES, ALIGNMENT, BatchLayout, BatchViews, StepFlag
from fastvec._core.structure import ArraySpec, DictNode, EnvDescription, Leaf, TupleNode

property_test = settings(deadline=None, database=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])

specs = st.builds(
    ArraySpec,
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.sampled_from(["?", "u1", "i2", "f2", "f4", "i8", "f8", "c16", ">i4", "U3"]).map(np.dtype),
)
layouts = st.builds(
    BatchLayout,
    num_envs=st.integers(1, 9),
    num_workers=st.integers(0, 4),
    observations=st.lists(st.none() | specs, max_size=4).map(tuple),
    action=st.none() | specs,
    banks=st.integers(1, 3),
)


def aligned_buffer(nbytes):
    """Memory that begins where a mapping would: on a boundary of 64 bytes."""
    memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]


def nbytes_of(shape, dtype):
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def all_views(views):
    named = [views.bells, views.commands, views.replies, views.mailbox, views.rewards, views.flags]
    named += [views.info_codes, views.info_cells, *(a for bank in views.banks for a in bank), *views.finals]
    if views.layout.action is not None:
        named.append(views.actions(ACTION_DTYPES.index(np.dtype("d"))))
    return [view for view in named if view is not None]


@property_test
@given(layouts)
def test_regions_are_aligned_and_do_not_overlap(layout):
    """Each region starts at a multiple of 64 bytes, after the end of the one before, within the block."""
    regions = layout.regions()
    end = 0
    for shape, dtype, offset in regions.values():
        assert offset % ALIGNMENT == 0
        assert offset >= end
        end = offset + nbytes_of(shape, dtype)
    assert end <= layout.nbytes
    assert layout.nbytes % ALIGNMENT == 0
    assert layout.nbytes >= ALIGNMENT


@property_test
@given(layouts)
def test_regions_follow_each_other_without_waste(layout):
    """No more than the padding to the next 64 bytes lies between two regions."""
    for (shape, dtype, offset), (_, _, following) in itertools.pairwise(layout.regions().values()):
        assert following - offset - nbytes_of(shape, dtype) < ALIGNMENT


@property_test
@given(layouts)
def test_what_is_written_through_one_view_is_seen_in_no_other(layout):
    """Filling the views one after another with ones changes exactly as many bytes as each of them has."""
    buffer = aligned_buffer(layout.nbytes)
    written = 0
    for view in all_views(BatchViews(layout, buffer)):
        assert not view.tobytes().strip(b"\0")
        view.reshape(-1).view(np.uint8)[...] = 1
        written += view.nbytes
        assert int(buffer.sum()) == written


@property_test
@given(layouts)
def test_views_have_a_row_for_each_worker_or_environment(layout):
    """Shapes and dtypes are those of the drawing: rows of workers, rows of environments, leaves as declared."""
    views = BatchViews(layout, aligned_buffer(layout.nbytes))
    envs, workers = layout.num_envs, layout.num_workers
    assert {len(view) for view in (views.bells, views.commands, views.replies, views.mailbox)} == {workers}
    assert (views.rewards.shape, views.rewards.dtype) == ((envs,), np.float64)
    assert (views.flags.shape, views.flags.dtype) == ((envs,), np.uint8)
    assert (views.info_codes.shape, views.info_codes.dtype) == ((envs,), np.int32)
    assert (views.info_cells.shape[0], views.info_cells.dtype) == (envs, np.float64)
    for arrays in (*views.banks, views.finals):
        for spec, array in zip(layout.observations, arrays, strict=True):
            assert (array is None) == (spec is None)
            if spec is not None:
                assert (array.shape, array.dtype) == ((envs, *spec.shape), spec.dtype)
                assert array.flags.c_contiguous


def test_bells_stand_on_cache_lines_of_their_own():
    """Two bells are at least 64 bytes apart, so that ringing one does not slow the other down."""
    layout = BatchLayout(2, 2, (), None)
    bells = BatchViews(layout, aligned_buffer(layout.nbytes)).bells
    addresses = sorted(bells[worker, side].ctypes.data for worker in range(2) for side in range(2))
    assert all(address % 64 == 0 for address in addresses)
    assert all(later - earlier >= 64 for earlier, later in itertools.pairwise(addresses))


@pytest.mark.parametrize("dtype", ACTION_DTYPES, ids=str)
def test_actions_travel_in_their_own_dtype(dtype):
    """Every dtype that has a code fits the region, whatever the space declares."""
    layout = BatchLayout(3, 1, (), ArraySpec((2,), np.dtype("int8")))
    views = BatchViews(layout, aligned_buffer(layout.nbytes))
    code = ACTION_DTYPES.index(dtype)
    batch = np.arange(6).reshape(3, 2).astype(dtype)
    views.actions(code)[...] = batch
    assert views.actions(code).dtype == dtype
    np.testing.assert_array_equal(views.actions(code), batch)
    assert not views.rewards.any()
    assert not views.info_cells.any()


def test_an_actions_view_is_made_once():
    """Asking twice for the same dtype gives the same array."""
    layout = BatchLayout(3, 1, (), ArraySpec((), np.dtype("int64")))
    views = BatchViews(layout, aligned_buffer(layout.nbytes))
    assert views.actions(7) is views.actions(7)
    assert views.actions(7).shape == (3,)


def test_codes_of_dtypes_are_distinct():
    """No two codes mean the same dtype."""
    assert len(set(ACTION_DTYPES)) == len(ACTION_DTYPES)


def test_a_layout_follows_from_what_the_environments_declare():
    """Leaves come in the order of the tree; an action that is no single array has no region."""
    image, speed = ArraySpec((2, 2), np.dtype("u1")), ArraySpec((), np.dtype("f4"))
    tree = DictNode(("image", "rest"), (Leaf(image), TupleNode((Leaf(None), Leaf(speed)))))
    action = ArraySpec((3,), np.dtype("f4"))
    layout = BatchLayout.of(EnvDescription(tree, Leaf(action), b""), 5, 2)
    assert layout == BatchLayout(5, 2, (image, None, speed), action, has_riders=False, banks=1)
    assert BatchLayout.of(EnvDescription(tree, TupleNode((Leaf(action),)), b""), 5, 2).action is None
    assert BatchLayout.of(EnvDescription(tree, Leaf(None), b""), 5, 2).action is None


def test_views_of_one_buffer_show_each_others_writes():
    """The parent and a worker that map one block see the same rows."""
    layout = BatchLayout(2, 1, (ArraySpec((2,), np.dtype("f4")),), None)
    buffer = aligned_buffer(layout.nbytes)
    ours, theirs = BatchViews(layout, buffer), BatchViews(layout, buffer)
    theirs.banks[0][0][1] = [3.0, 4.0]
    theirs.commands[0, 0] = 7
    assert ours.banks[0][0].tolist() == [[0.0, 0.0], [3.0, 4.0]]
    assert ours.commands[0, 0] == 7


def test_flags_are_bits_of_a_byte():
    """All flags together fit the one byte that an environment has for them."""
    assert [flag.value for flag in StepFlag] == [1, 2, 4, 8]
    assert sum(flag.value for flag in StepFlag) < 256
