"""Blocks of shared memory: mapped by several, named nowhere, and reserved when they are made."""

from __future__ import annotations

import gc
import mmap
import os
import resource
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fastvec._core.shm import SharedBlock
from fastvec.errors import SharedMemoryError

SIZE = 3 * 4096 + 5


@pytest.fixture(params=["memfd", "file"])
def place(request, monkeypatch, tmp_path):
    """Where blocks come from: memory files, or on platforms without them a folder for temporary files."""
    if request.param == "file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    elif not hasattr(os, "memfd_create"):
        pytest.skip("this platform has no memory files")
    return tmp_path


@pytest.fixture
def block(place):
    """A block of a size that is no multiple of a page."""
    block = SharedBlock.create(SIZE)
    yield block
    block.close()


def array_over(block):
    return np.frombuffer(block.buffer, np.uint8)


def mapped_descriptors():
    """The descriptors of this process that refer to memory of ours."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return [name for name in names if "fastvec" in name]


def test_a_new_block_is_all_zeros(block):
    """It has exactly the bytes that were asked for."""
    assert block.nbytes == len(block.buffer) == SIZE
    assert not array_over(block).any()


def test_its_pages_are_reserved_when_it_is_made(block):
    """Memory that could be missing later is taken at once."""
    assert os.fstat(block.fd).st_blocks * 512 >= SIZE


def test_a_block_has_no_name(place, block):
    """Nobody can find it by a path, and nothing is left to remove."""
    assert os.fstat(block.fd).st_nlink == 0
    assert list(place.iterdir()) == []
    assert not any("fastvec" in name for name in os.listdir("/dev/shm"))


def test_another_mapping_of_the_descriptor_sees_the_same_bytes(block):
    """Whoever has a copy of the descriptor shares the memory, in both directions."""
    other = SharedBlock(os.dup(block.fd), SIZE)
    array_over(block)[7] = 42
    array_over(other)[SIZE - 1] = 43
    assert array_over(other)[7] == 42
    assert array_over(block)[SIZE - 1] == 43
    other.close()


def test_a_child_writes_into_the_parents_memory(block, forked, exit_code_of):
    """A forked child's writes are the parent's reads, also when the child has been ended since."""

    def child():
        array_over(block)[:] = 9

    assert exit_code_of(forked(child)) == 0
    assert (array_over(block) == 9).all()


def test_arrays_outlive_the_descriptor(block):
    """Closing gives up the descriptor, not the memory below arrays that are still there."""
    array = array_over(block)
    block.close()
    assert block.fd == -1
    array[:] = 5
    assert int(array.sum()) == 5 * SIZE


def test_closing_twice_closes_nothing_else(block):
    """The second close does not touch whoever has that number of descriptor by then."""
    block.close()
    reader, writer = os.pipe()
    block.close()
    os.write(writer, b"still open")
    assert os.read(reader, 100) == b"still open"
    os.close(reader)
    os.close(writer)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_nothing_remains_after_the_last_array(place):
    """When descriptor, block and arrays have gone, so has every descriptor of the memory."""
    before = mapped_descriptors()
    block = SharedBlock.create(SIZE)
    array = array_over(block)
    assert mapped_descriptors() != before
    block.close()
    del block, array
    assert mapped_descriptors() == before


def test_memory_that_is_not_there_is_an_error_at_once(place, forked, exit_code_of):
    """Under a limit on file sizes a block beyond it is a SharedMemoryError that says what to do."""

    def child():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(SharedMemoryError) as caught:
            SharedBlock.create((1 << 20) + 1)
        assert "shared memory of 1,048,577 bytes is needed and" in str(caught.value)
        assert "use fewer environments, smaller observations, or point TMPDIR at a larger place" in str(caught.value)
        assert len(os.listdir("/proc/self/fd")) == before
        SharedBlock.create(1 << 20).close()

    assert exit_code_of(forked(child)) == 0
    assert list(place.iterdir()) == []


def test_a_missing_folder_for_temporary_files_is_named(monkeypatch, tmp_path):
    """Where blocks are files and there is no place for them, the error gives the size and the place."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(SharedMemoryError, match=r"no file for 4,096 bytes of shared memory in .*missing"):
        SharedBlock.create(4096)


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTFORK"), reason="blocks are mapped in children here")
def test_a_child_may_collect_a_mapping_that_it_did_not_inherit(forked, exit_code_of):
    """The address of a block that is kept from children is free in a child: collecting it there unmaps nothing else."""
    block = SharedBlock.create(SIZE)
    block.keep_from_children()
    held = [array_over(block)]
    address = held[0].ctypes.data

    def child():
        mappings = [mmap.mmap(-1, SIZE) for _ in range(50)]
        arrays = [np.frombuffer(mapping, np.uint8) for mapping in mappings]
        assert any(array.ctypes.data == address for array in arrays), "none took the free address"
        held.clear()
        del block.buffer
        gc.collect()
        for array in arrays:
            array[:] = 1

    assert exit_code_of(forked(child)) == 0
    held.clear()
    block.close()
