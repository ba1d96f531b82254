"""Messages over socket pairs: whole, in order, with their descriptors, and never waited for in vain."""

from __future__ import annotations

import os
import signal
import struct
import time

import pytest

from fastvec._core.channel import Channel, Gone, remaining, wait_for

#: Large enough to fill the buffers of any socket many times over.
LARGE = bytes(range(256)) * 40_000
PATIENCE = 60.0


def soon():
    """A deadline that only a failing test reaches."""
    return time.monotonic() + PATIENCE


@pytest.fixture
def ends():
    """Both ends of a channel, in this process."""
    ours, theirs = Channel.pair()
    theirs = Channel(theirs)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def raw():
    """One end of a channel, and the bare socket at the other end."""
    ours, theirs = Channel.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def pipe():
    """The two descriptors of a pipe; those that a test closes itself it takes out of the list."""
    fds = list(os.pipe())
    yield fds
    for fd in fds:
        os.close(fd)


def test_messages_arrive_whole_and_in_order(ends):
    """Several messages, empty ones too, are taken one by one."""
    ours, theirs = ends
    for message in (b"first", b"", b"\0" * 10, b"last"):
        ours.send(message)
    assert [theirs.receive(deadline=soon()) for _ in range(4)] == [b"first", b"", b"\0" * 10, b"last"]


def test_both_ends_send(ends):
    """A channel has two directions."""
    ours, theirs = ends
    ours.send(b"ping")
    theirs.send(b"pong")
    assert (ours.receive(deadline=soon()), theirs.receive(deadline=soon())) == (b"pong", b"ping")


def test_a_large_message_crosses_to_another_process_and_back(forked, exit_code_of):
    """Ten megabytes, many times what a socket holds, come back as they went."""
    ours, socket = Channel.pair()

    def echo():
        ours.close()
        channel = Channel(socket)
        channel.send(channel.receive(deadline=soon()), deadline=soon())

    child = forked(echo)
    socket.close()
    ours.send(LARGE, deadline=soon())
    assert ours.receive(deadline=soon()) == LARGE
    assert exit_code_of(child) == 0
    ours.close()


def test_descriptors_travel_beside_a_message(ends, pipe):
    """The receiver gets copies that it owns; the sender keeps its own."""
    ours, theirs = ends
    ours.send(b"take this", fds=(pipe[1],))
    assert theirs.receive(deadline=soon()) == b"take this"
    (copy,) = theirs.take_fds()
    assert theirs.take_fds() == []
    os.write(copy, b"by the copy")
    os.close(copy)
    assert os.read(pipe[0], 100) == b"by the copy"


def test_descriptors_travel_with_a_large_message(pipe, forked, exit_code_of):
    """A message that is sent in many pieces carries its descriptors once."""
    ours, socket = Channel.pair()

    def receive():
        ours.close()
        channel = Channel(socket)
        assert channel.receive(deadline=soon()) == LARGE
        assert len(channel.take_fds()) == 2

    child = forked(receive)
    socket.close()
    ours.send(LARGE, fds=tuple(pipe), deadline=soon())
    assert exit_code_of(child) == 0
    ours.close()


def test_descriptors_that_nobody_took_are_closed_with_the_channel(ends, pipe):
    """A pipe whose last write end lies in a closed channel is at its end."""
    ours, theirs = ends
    ours.send(b"", fds=(pipe[1],))
    theirs.receive(deadline=soon())
    os.close(pipe.pop())
    assert wait_for([pipe[0]], 0) == []
    theirs.close()
    assert os.read(pipe[0], 1) == b""


def test_a_wait_without_a_message_ends_at_its_deadline(ends):
    """Nothing was sent, so the wait ends with a TimeoutError and not before its time."""
    ours, _ = ends
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        ours.receive(deadline=began + 0.05)
    assert time.monotonic() >= began + 0.049


def test_a_message_that_is_there_is_taken_even_after_the_deadline(ends):
    """A deadline that has passed forbids waiting, not taking."""
    ours, theirs = ends
    ours.send(b"here already")
    assert theirs.receive(deadline=time.monotonic() - 1) == b"here already"


def test_half_a_message_is_kept_until_the_rest_comes(raw):
    """After a timeout in the midst of a message, the next call returns it whole."""
    ours, socket = raw
    message = struct.pack("<Q", 6) + b"sundry"
    for cut in (3, 11):
        socket.send(message[:cut])
        assert not ours.poll()
        with pytest.raises(TimeoutError):
            ours.receive(deadline=time.monotonic())
        socket.send(message[cut:])
        assert ours.receive(deadline=soon()) == b"sundry"


def test_two_messages_in_one_piece_are_two_messages(raw):
    """What arrives together with an earlier message is seen by the next look, without anything new coming."""
    ours, socket = raw
    socket.send(struct.pack("<Q", 1) + b"a" + struct.pack("<Q", 1) + b"b")
    assert ours.receive(deadline=soon()) == b"a"
    assert ours.poll()
    assert ours.receive(deadline=time.monotonic()) == b"b"
    assert not ours.poll()


def test_a_closed_channel_gives_its_last_messages_first(ends):
    """What the other side had sent before it went is taken; then comes Gone, every time."""
    ours, theirs = ends
    ours.send(b"one")
    ours.send(b"two")
    ours.close()
    assert theirs.poll()
    assert [theirs.receive(deadline=soon()) for _ in range(2)] == [b"one", b"two"]
    for _ in range(2):
        with pytest.raises(Gone):
            theirs.receive(deadline=soon())
    assert not theirs.poll()
    assert theirs.at_end()


def test_sending_to_a_closed_channel_is_gone(ends):
    """There is nobody to read it, and no signal ends the sender."""
    ours, theirs = ends
    theirs.close()
    with pytest.raises(Gone):
        ours.send(b"anybody?", deadline=soon())


def test_a_channel_that_is_closed_here_is_gone(ends):
    """After its own close a channel has no descriptor, sends nothing and receives nothing."""
    ours, _ = ends
    ours.close()
    ours.close()
    assert ours.fileno() == -1
    assert ours.at_end()
    for use in (ours.receive, lambda: ours.send(b"")):
        with pytest.raises(Gone):
            use()


def test_half_a_message_of_a_process_that_died_is_gone(forked, exit_code_of):
    """A process killed in the midst of sending leaves no message, and no wait."""
    ours, socket = Channel.pair()

    def child():
        socket.send(struct.pack("<Q", 100) + b"only this much")
        os.kill(os.getpid(), signal.SIGKILL)

    child = forked(child)
    socket.close()
    with pytest.raises(Gone):
        ours.receive(deadline=soon())
    assert exit_code_of(child) == -signal.SIGKILL
    ours.close()


def test_a_death_is_noticed_by_the_sentinel_where_the_socket_stays_open(raw, forked):
    """Another process still holds the other end, yet the wait ends with the one that was to answer."""
    ours, socket = raw
    child = forked(lambda: os.kill(os.getpid(), signal.SIGKILL))
    if child.sentinel is None:
        pytest.skip("this system has no descriptors of processes")
    with pytest.raises(Gone):
        ours.receive(deadline=soon(), sentinel=child.sentinel)
    assert socket.fileno() >= 0


def test_what_a_process_sent_before_its_death_comes_first(raw, forked, exit_code_of):
    """The sentinel of a dead process does not hide the message that it had sent."""
    ours, socket = raw

    def child():
        socket.send(struct.pack("<Q", 4) + b"last")

    child = forked(child)
    assert exit_code_of(child) == 0
    if child.sentinel is None:
        pytest.skip("this system has no descriptors of processes")
    assert ours.receive(deadline=soon(), sentinel=child.sentinel) == b"last"
    with pytest.raises(Gone):
        ours.receive(deadline=soon(), sentinel=child.sentinel)


def test_sending_to_one_that_does_not_read_ends_at_the_deadline(raw):
    """When the buffers are full and nobody empties them, the sender gives up."""
    ours, _ = raw
    with pytest.raises(TimeoutError):
        ours.send(LARGE, deadline=time.monotonic() + 0.05)


def test_sending_to_one_that_died_without_reading_is_gone(raw, forked):
    """The buffers are full and the socket is held open by another, but the sentinel tells of the death."""
    ours, _ = raw
    child = forked(lambda: os.kill(os.getpid(), signal.SIGKILL))
    if child.sentinel is None:
        pytest.skip("this system has no descriptors of processes")
    with pytest.raises(Gone):
        ours.send(LARGE, deadline=soon(), sentinel=child.sentinel)


def test_poll_and_at_end_do_not_wait(ends):
    """With nothing there, both looks say so at once; with a message there, it stays there."""
    ours, theirs = ends
    assert not ours.poll()
    assert not ours.at_end()
    theirs.send(b"news")
    assert not ours.at_end()
    assert ours.poll()
    assert ours.receive(deadline=time.monotonic()) == b"news"


def test_discarding_frees_a_sender_that_is_stuck(forked, exit_code_of):
    """A process that sends what nobody wants any more ends once it is read and dropped."""
    ours, socket = Channel.pair()

    def child():
        ours.close()
        Channel(socket).send(LARGE)

    child = forked(child)
    socket.close()
    deadline = soon()
    while not ours.at_end() and time.monotonic() < deadline:
        wait_for([ours.fileno()], remaining(deadline))
        ours.discard()
    assert exit_code_of(child) == 0
    ours.discard()
    ours.close()


def test_waiting_tells_which_descriptors_are_ready(pipe, ends):
    """Readable, writable and ended descriptors are told apart from those with nothing to say."""
    ours, theirs = ends
    assert wait_for([pipe[0], ours.fileno()], 0) == []
    assert wait_for([pipe[0]], 0, [ours.fileno()]) == [ours.fileno()]
    theirs.send(b"x")
    assert wait_for([pipe[0], ours.fileno()], PATIENCE) == [ours.fileno()]
    os.close(pipe.pop())
    assert sorted(wait_for([pipe[0], ours.fileno()], PATIENCE)) == sorted([pipe[0], ours.fileno()])


def test_remaining_counts_down_to_zero():
    """No deadline has no remainder, and one that has passed leaves nothing."""
    assert remaining(None) is None
    assert remaining(time.monotonic() - 5) == 0.0
    assert 0 < remaining(time.monotonic() + 1000) <= 1000


def test_a_dropped_message_leaves_nothing(ends):
    """An empty rest would have every look at the next message join all that has come of it: quadratic time."""
    one, other = ends
    one.send(b"x" * 100)
    assert other.receive() == b"x" * 100
    assert other._chunks == []
    one.send(b"first")
    one.send(b"second")
    assert other.receive() == b"first"
    assert other.receive() == b"second"
    assert other._chunks == []
