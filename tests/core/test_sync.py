"""Bells: rings are counted, none is lost, and what was written before a ring is read after it."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from fastvec._core.channel import Channel, Gone
from fastvec._core.sync import ChannelBell, SemaphoreBell, semaphores_work, spin

PATIENCE = 60.0
needs_semaphores = pytest.mark.skipif(not semaphores_work(), reason="needs semaphores that processes can share")


class Pair:
    """Two bells, one for each direction, and a block of memory, all shared with children forked later."""

    def __init__(self, kind):
        self.memory = np.frombuffer(mmap.mmap(-1, 4096), np.uint8)
        self.words = self.memory[2048:].view(np.int64)
        self._open = []
        if kind == "semaphore":
            self.there, self.back = SemaphoreBell(self.memory[:64]), SemaphoreBell(self.memory[64:128])
            self.there.initialize()
            self.back.initialize()
            self.as_seen_by_child = lambda: (self.there, self.back)
        else:
            ours, theirs = Channel.pair()
            self._open = [ours, theirs]
            self.there = self.back = ChannelBell(ours)
            self.as_seen_by_child = lambda: (ChannelBell(Channel(theirs)),) * 2

    def close(self):
        for end in self._open:
            end.close()


@pytest.fixture(params=[pytest.param("semaphore", marks=needs_semaphores), "channel"])
def pair(request):
    """Both kinds of bells."""
    pair = Pair(request.param)
    yield pair
    pair.close()


def test_this_platform_has_what_the_bells_need():
    """On Linux semaphores in shared memory always work; elsewhere the answer is at least an answer."""
    assert semaphores_work() is True or not sys.platform.startswith("linux")


def test_rings_are_counted(pair, forked, exit_code_of):
    """Three rings of another process are three successful waits, whenever they are made."""

    def child():
        bell = pair.as_seen_by_child()[1]
        for _ in range(3):
            bell.ring()

    assert exit_code_of(forked(child)) == 0
    assert [pair.back.wait(0) for _ in range(4)] == [True, True, True, False]


def test_a_wait_without_a_ring_ends_in_time(pair):
    """Nobody rings: no wait succeeds, and one with a timeout lasts it."""
    assert pair.back.wait(0) is False
    began = time.monotonic()
    assert pair.back.wait(0.05) is False
    assert time.monotonic() >= began + 0.049


def test_what_was_written_before_a_ring_is_read_after_it(pair, forked, exit_code_of):
    """Over many rounds between two processes, each sees in memory what the other wrote before it rang."""
    rounds, words = 300, pair.words

    def child():
        there, back = pair.as_seen_by_child()
        for number in range(1, rounds + 1):
            assert there.wait(PATIENCE)
            assert words[0] == number
            words[1] = -number
            back.ring()

    child = forked(child)
    for number in range(1, rounds + 1):
        words[0] = number
        pair.there.ring()
        assert pair.back.wait(PATIENCE)
        assert words[1] == -number
    assert exit_code_of(child) == 0


def test_the_rings_of_a_killed_process_are_not_lost(pair, forked, exit_code_of):
    """A process that is killed right after it rang has rung."""

    def child():
        pair.as_seen_by_child()[1].ring()
        os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code_of(forked(child)) == -signal.SIGKILL
    assert pair.back.wait(PATIENCE)


def test_a_process_killed_in_its_wait_does_not_disturb_others(pair, forked, exit_code_of):
    """After a waiting process has been killed, rings still reach who waits next."""
    reader, writer = os.pipe()

    def child():
        there = pair.as_seen_by_child()[0]
        os.write(writer, b"!")
        there.wait(PATIENCE)

    child = forked(child)
    assert os.read(reader, 1) == b"!"
    child.kill(signal.SIGKILL)
    assert exit_code_of(child) == -signal.SIGKILL

    def successor():
        assert pair.as_seen_by_child()[0].wait(PATIENCE)

    child = forked(successor)
    pair.there.ring()
    assert exit_code_of(child) == 0
    os.close(reader)
    os.close(writer)


def test_a_sleeper_lets_other_threads_run(pair):
    """One thread sleeps in a wait while another rings."""
    woken = []
    bell = pair.as_seen_by_child()[1] if pair.there is pair.back else pair.back
    thread = threading.Thread(target=lambda: woken.append(pair.back.wait(PATIENCE)))
    thread.start()
    bell.ring()
    thread.join(PATIENCE)
    assert woken == [True]


@needs_semaphores
def test_a_signal_is_handled_while_a_wait_sleeps(forked, exit_code_of):
    """A signal ends the sleep early, so that Ctrl-C is answered however long a step takes."""
    pair = Pair("semaphore")
    handled = []
    before = signal.signal(signal.SIGUSR1, lambda *_: handled.append(True))
    try:
        parent = os.getpid()

        def child():
            # Until the parent tells that it has been woken: one signal might come before it sleeps.
            while not pair.there.wait(0.02):
                os.kill(parent, signal.SIGUSR1)

        child = forked(child)
        while not handled:
            assert pair.back.wait(PATIENCE) is False
        pair.there.ring()
        assert exit_code_of(child) == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert set(handled) == {True}


@needs_semaphores
def test_bells_beside_each_other_are_independent():
    """Ringing one bell of a block wakes nobody at the other."""
    pair = Pair("semaphore")
    pair.there.ring()
    assert pair.back.wait(0) is False
    assert pair.there.wait(0) is True


@needs_semaphores
def test_two_bells_over_one_memory_are_one_bell():
    """Who maps the same memory waits at the same bell, without making it again."""
    pair = Pair("semaphore")
    twin = SemaphoreBell(pair.memory[:64])
    twin.ring()
    assert pair.there.wait(0) is True
    assert twin.wait(0) is False


@needs_semaphores
def test_a_bell_keeps_its_memory_alive():
    """Rings go nowhere else after everybody else has let go of the block."""
    pair = Pair("semaphore")
    bell = pair.there
    del pair
    gc.collect()
    bell.ring()
    assert [bell.wait(0), bell.wait(0)] == [True, False]


def test_a_channel_bell_tells_when_the_other_side_is_gone():
    """Waiting for the rings of a dead process is Gone, not a timeout."""
    ours, theirs = Channel.pair()
    theirs.close()
    with pytest.raises(Gone):
        ChannelBell(ours).wait(PATIENCE)
    ours.close()


def test_spinning_ends_when_the_word_has_the_value():
    """A word that another process sets ends the looking; one that has the value already is looked at once."""
    words = [memoryview(bytearray(8)).cast("q") for _ in range(2)]
    words[1][0] = 7
    assert spin([(words[0], 5), (words[1], 7)], time.perf_counter() + PATIENCE)
    thread = threading.Thread(target=words[0].__setitem__, args=(0, 5))
    thread.start()
    assert spin([(words[0], 5), (words[1], 8)], time.perf_counter() + PATIENCE)
    assert words[0][0] == 5
    thread.join()


def test_spinning_ends_in_time():
    """A word that nobody sets is looked at for about as long as was asked, and nothing is raised."""
    word = memoryview(bytearray(8)).cast("q")
    began = time.perf_counter()
    assert not spin([(word, 5)], began + 0.02)
    assert 0.02 <= time.perf_counter() - began < PATIENCE
    assert not spin([(word, 5)], began)
