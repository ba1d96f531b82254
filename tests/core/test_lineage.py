"""Who lives and dies with whom: descriptors in forked children, and workers without a parent."""

from __future__ import annotations

import os
import resource
import signal
import sys

import pytest

from fastvec._core.channel import Channel, wait_for
from fastvec._core.lineage import LifeLine, close_in_children, die_with

PATIENCE = 60.0
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the kernel of Linux")


@pytest.fixture
def alive():
    """A pipe that is at its end once every process that was forked with it has ended."""
    reader, writer = os.pipe()
    fds = [reader, writer]
    yield fds
    for fd in fds:
        os.close(fd)


def all_have_ended(alive):
    """Close our own write end, and wait until no other is left."""
    os.close(alive.pop())
    reader = alive[0]
    while True:
        assert wait_for([reader], PATIENCE) == [reader], "a process lives on"
        if os.read(reader, 100) == b"":
            return True


def limited():
    """Should a test fail, no child computes for ever."""
    resource.setrlimit(resource.RLIMIT_CPU, (30, 30))


def test_what_only_the_parent_may_hold_is_closed_in_its_children(forked, exit_code_of):
    """A forked child finds the channel closed; in the parent it is open, and works."""
    ours, socket = Channel.pair()
    close_in_children(ours)

    def child():
        assert ours.fileno() == -1

    assert exit_code_of(forked(child)) == 0
    ours.send(b"x")
    assert socket.recv(100).endswith(b"x")
    ours.close()
    socket.close()


def test_grandchildren_find_it_closed_too(forked, exit_code_of):
    """However deep a process descends from the parent, it holds nothing of what is the parent's."""
    ours, socket = Channel.pair()
    close_in_children(ours)

    def child():
        pid = os.fork()
        if pid == 0:
            os._exit(0 if ours.fileno() == -1 else 1)
        assert os.waitpid(pid, 0)[1] == 0

    assert exit_code_of(forked(child)) == 0
    ours.close()
    socket.close()


def test_an_end_of_file_comes_although_children_live(forked, exit_code_of):
    """When the parent closes, the other side hears of it at once: no child that was forked meanwhile keeps it open."""
    ours, socket = Channel.pair()
    close_in_children(ours)
    reader, writer = os.pipe()

    def child():
        os.close(writer)
        os.read(reader, 1)

    child = forked(child)
    ours.close()
    assert wait_for([socket.fileno()], PATIENCE)
    assert socket.recv(100) == b""
    assert child.poll() is None
    os.close(writer)
    assert exit_code_of(child) == 0
    os.close(reader)
    socket.close()


def test_one_that_fails_to_close_does_not_keep_others_open(forked, exit_code_of):
    """An OSError of one owner, in a child, is no reason to leave out the next."""

    class Broken:
        def close(self):
            raise OSError("no")

    before, broken, after = LifeLine(), Broken(), LifeLine()
    close_in_children(broken)

    def child():
        assert (before.read_fd, after.read_fd) == (-1, -1)

    assert exit_code_of(forked(child)) == 0
    before.close()
    after.close()


def test_a_life_line_is_at_its_end_when_it_is_closed_and_closes_once():
    """Closing it can be repeated, and a copy of the read end then tells of the end."""
    lifeline = LifeLine()
    copy = os.dup(lifeline.read_fd)
    assert wait_for([copy], 0) == []
    lifeline.close()
    lifeline.close()
    assert lifeline.read_fd == -1
    assert os.read(copy, 1) == b""
    os.close(copy)


@linux
def test_a_worker_lives_as_long_as_the_life_line(forked, exit_code_of):
    """Bound to a life line, it goes on and answers; when the line is let go it is killed."""
    lifeline = LifeLine()
    ours, socket = Channel.pair()
    copy = os.dup(lifeline.read_fd)

    def worker():
        ours.close()
        die_with(copy)
        channel = Channel(socket)
        while True:
            channel.send(channel.receive())

    child = forked(worker)
    for message in (b"one", b"two"):
        ours.send(message)
        assert ours.receive(sentinel=child.sentinel) == message
    assert child.poll() is None
    lifeline.close()
    assert exit_code_of(child) == -signal.SIGKILL
    os.close(copy)
    ours.close()
    socket.close()


@linux
def test_workers_die_with_a_killed_parent_even_while_they_compute(alive, forked, exit_code_of):
    """After SIGKILL of the parent, two workers deep in C code with the interpreter's lock held end as well."""
    reader, ready = os.pipe()

    def parent():
        lifeline = LifeLine()
        for _ in range(2):
            copy = os.dup(lifeline.read_fd)
            if os.fork() == 0:
                limited()
                die_with(copy)
                os.write(ready, b"!")
                sum(range(10**15))
                os._exit(0)
            os.close(copy)
        signal.pause()

    child = forked(parent)
    got = b""
    while len(got) < 2:
        assert wait_for([reader], PATIENCE) == [reader]
        got += os.read(reader, 2)
    child.kill(signal.SIGKILL)
    assert exit_code_of(child) == -signal.SIGKILL
    assert all_have_ended(alive)
    os.close(reader)
    os.close(ready)


@linux
def test_a_worker_that_is_born_after_its_parents_death_ends_at_once(forked, exit_code_of):
    """The life line was gone before the worker took hold of it."""
    lifeline = LifeLine()
    copy = os.dup(lifeline.read_fd)
    lifeline.close()

    def worker():
        die_with(copy)
        signal.pause()

    assert exit_code_of(forked(worker)) == 1
    os.close(copy)


@linux
def test_one_worker_that_ends_does_not_take_others_along(forked, exit_code_of):
    """Each worker is bound for itself: the end of one is no end of the line."""
    lifeline = LifeLine()
    first_copy, second_copy = os.dup(lifeline.read_fd), os.dup(lifeline.read_fd)
    reader, ready = os.pipe()
    assert exit_code_of(forked(lambda: die_with(first_copy))) == 0

    def second():
        die_with(second_copy)
        os.write(ready, b"!")
        signal.pause()

    child = forked(second)
    assert os.read(reader, 1) == b"!"
    assert exit_code_of(forked(lambda: die_with(first_copy))) == 0
    assert child.poll() is None
    lifeline.close()
    assert exit_code_of(child) == -signal.SIGKILL
    for fd in (first_copy, second_copy, reader, ready):
        os.close(fd)


@linux
def test_a_worker_takes_over_the_descriptor_that_it_was_given(forked, exit_code_of):
    """It holds one descriptor of the line as before, which programs that it starts do not inherit."""
    lifeline = LifeLine()
    copy = os.dup(lifeline.read_fd)
    name = os.readlink(f"/proc/self/fd/{copy}")

    def held():
        fds = [int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
        return [fd for fd in fds if os.readlink(f"/proc/self/fd/{fd}") == name]

    def worker():
        os.set_inheritable(copy, True)
        assert held() == [copy]
        die_with(copy)
        assert [os.get_inheritable(fd) for fd in held()] == [False]

    assert exit_code_of(forked(worker)) == 0
    lifeline.close()
    os.close(copy)
