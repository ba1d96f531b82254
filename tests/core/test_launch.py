"""Handles on other processes: how they ended, whether they still run, and waiting for several."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from fastvec._core.channel import Gone, wait_for
from fastvec._core.launch import (
    EXIT_UNKNOWN,
    ForkedProcess,
    SpawnedProcess,
    import_path,
    open_pidfd,
    spawn_process,
    wait_for_exit,
)

PATIENCE = 60.0
ENDS = {
    "by itself": ("pass", 0),
    "with a code": ("import os; os._exit(7)", 7),
    "by SIGKILL": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "by SIGUSR1": ("import os, signal; os.kill(os.getpid(), signal.SIGUSR1)", -signal.SIGUSR1),
}


def is_running(pid):
    """Whether there is a process of that number which is more than the record of an end."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(params=["forked", "spawned"])
def start(request, forked):
    """Run a line of Python in another process, with a handle of either kind on it."""
    spawned = []

    def start(code):
        if request.param == "forked":
            return forked(lambda: exec(code))
        # Neither site nor environment: these interpreters start in no time.
        process = subprocess.Popen([sys.executable, "-ISc", code], stdin=subprocess.DEVNULL)
        spawned.append(SpawnedProcess(process))
        return spawned[-1]

    yield start
    for process in spawned:
        process.kill(signal.SIGKILL)
        assert wait_for_exit([process], PATIENCE) == []
        process.release()


FOREVER = "import signal; signal.pause()"


@pytest.mark.parametrize(("code", "expected"), ENDS.values(), ids=ENDS)
def test_the_exit_code_tells_how_a_process_ended(start, exit_code_of, code, expected):
    """A code of its own, or the negative number of the signal that killed it; asked again, the same."""
    process = start(code)
    assert exit_code_of(process) == expected
    assert process.poll() == expected


def test_the_peak_of_a_forked_process_is_known_once_it_has_ended(forked, exit_code_of):
    """In bytes, what it had at most at any time; asked again, the same. Not where somebody else has collected it."""
    process = forked(lambda: len(b"x" * int("100_000_000")))
    assert exit_code_of(process) == 0
    peak = process.peak_rss()
    assert 0 <= peak - 10**8 <= psutil.Process().memory_info().rss + 10**8
    assert process.peak_rss() == peak
    running = forked(lambda: exec(FOREVER))
    assert running.peak_rss() is None
    collected = forked(lambda: None)
    os.waitpid(collected.pid, 0)
    assert collected.poll() == EXIT_UNKNOWN
    assert collected.peak_rss() is None


def test_the_peak_of_a_spawned_process_is_not_told(exit_code_of):
    """The system would count this program's own peak as its."""
    process = SpawnedProcess(subprocess.Popen([sys.executable, "-ISc", "pass"], stdin=subprocess.DEVNULL))
    assert exit_code_of(process) == 0
    assert process.peak_rss() is None
    process.release()


def test_a_running_process_has_no_exit_code_until_it_is_killed(start, exit_code_of):
    """It runs until a signal is sent through its handle."""
    process = start(FOREVER)
    assert process.poll() is None
    assert is_running(process.pid)
    process.kill(signal.SIGKILL)
    assert exit_code_of(process) == -signal.SIGKILL
    assert not is_running(process.pid)


def test_killing_a_process_that_has_ended_does_nothing(start, exit_code_of):
    """The end stays what it was, and nobody who has the same number by now is hit."""
    process = start("pass")
    assert exit_code_of(process) == 0
    process.kill(signal.SIGKILL)
    assert process.poll() == 0


def test_the_sentinel_is_readable_once_the_process_has_ended(start):
    """A wait for the descriptor is a wait for the end."""
    process = start(FOREVER)
    if process.sentinel is None:
        pytest.skip("this system has no descriptors of processes")
    assert wait_for([process.sentinel], 0) == []
    process.kill(signal.SIGKILL)
    assert wait_for([process.sentinel], PATIENCE) == [process.sentinel]
    # It may be readable a moment before the code is known; then it is there.
    assert wait_for_exit([process], PATIENCE) == []


def test_releasing_a_handle_closes_the_sentinel_once(start, exit_code_of):
    """The descriptor is given back, a second release gives nothing back, and the code is still known."""
    process = start("import os; os._exit(3)")
    sentinel = process.sentinel
    assert exit_code_of(process) == 3
    process.release()
    process.release()
    assert process.sentinel is None
    if sentinel is not None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(sentinel)
    assert process.poll() == 3


def test_waiting_for_several_returns_those_that_still_run(start):
    """Of three processes the one that goes on is returned after the time given, in no less than that."""
    ended, killed, running = start("pass"), start(FOREVER), start(FOREVER)
    killed.kill(signal.SIGTERM)
    assert wait_for_exit([ended, killed], PATIENCE) == []
    began = time.monotonic()
    assert wait_for_exit([ended, running, killed], 0.05) == [running]
    assert time.monotonic() - began >= 0.049
    running.kill(signal.SIGKILL)
    assert wait_for_exit([ended, running, killed], PATIENCE) == []


def test_waiting_for_nothing_is_no_wait(start):
    """Without processes, with ended ones, or without time, the answer comes at once."""
    assert wait_for_exit([], PATIENCE) == []
    running = start(FOREVER)
    assert wait_for_exit([running], 0) == [running]
    assert wait_for_exit([running], -1) == [running]


def test_waiting_works_without_sentinels(start):
    """Where the system has no descriptors of processes, an end is still noticed."""
    running, ended = start(FOREVER), start("pass")
    running.release()
    ended.release()
    assert wait_for_exit([running, ended], 0.05) in ([running], [running, ended])
    running.kill(signal.SIGTERM)
    assert wait_for_exit([running, ended], PATIENCE) == []
    assert (running.poll(), ended.poll()) == (-signal.SIGTERM, 0)


def test_a_child_that_somebody_else_has_waited_for_has_ended(forked):
    """The program may reap all its children itself: the code is lost then, but not the end."""
    process = forked(lambda: os._exit(3))
    assert os.waitpid(process.pid, 0) == (process.pid, 3 << 8)
    assert process.poll() == EXIT_UNKNOWN
    process.kill(signal.SIGKILL)
    assert wait_for_exit([process], 0) == []


def test_there_is_no_descriptor_of_a_process_that_is_not_there(forked, exit_code_of):
    """A number that nobody has yields None, as does a system without such descriptors."""
    process = forked(lambda: None)
    assert exit_code_of(process) == 0
    assert open_pidfd(process.pid) is None
    assert ForkedProcess(process.pid).sentinel is None


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """Write a module that a new interpreter finds only by this program's ``sys.path``, with one function in it."""

    def write(body):
        (tmp_path / "entry_of_test.py").write_text(f"import os, signal, sys\ndef run(sock):\n    {body}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        return "entry_of_test:run"

    return write


def test_a_new_interpreter_has_its_end_of_a_channel_and_its_variables(entry, exit_code_of):
    """It runs the function that was named, with a socket to its parent and exactly the variables given."""
    environ = {"ONLY": "this", "PATH": os.environ.get("PATH", "")}
    body = (
        "sock.setblocking(True); from fastvec._core.channel import Channel; c = Channel(sock); "
        "c.send(repr((os.environ.get('ONLY'), 'HOME' in os.environ, sock.get_inheritable())).encode()); "
        "os._exit(int(c.receive()))"
    )
    process, channel = spawn_process(entry(body), environ)
    assert channel.receive(deadline=time.monotonic() + PATIENCE, sentinel=process.sentinel) == b"('this', False, False)"
    channel.send(b"9")
    assert exit_code_of(process) == 9
    with pytest.raises(Gone):
        channel.receive(deadline=time.monotonic() + PATIENCE)
    channel.close()
    process.release()


def test_a_new_interpreter_that_fails_ends_with_an_error(entry, exit_code_of, capfd):
    """An exception in its function is printed and leaves the usual code."""
    process, channel = spawn_process(entry("raise ValueError('from over there')"), dict(os.environ))
    assert exit_code_of(process) == 1
    assert "ValueError: from over there" in capfd.readouterr().err
    channel.close()
    process.release()


def test_an_interpreter_that_cannot_be_started_leaves_nothing(entry):
    """When the system refuses, the error is its own and both ends of the channel are closed."""
    with pytest.raises(ValueError, match="embedded null"):
        spawn_process(entry("pass"), {"BAD": "a\0b"})


def test_the_import_path_has_no_relative_entry(monkeypatch, tmp_path):
    """The empty entry, which means wherever one is, becomes the folder that it means here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/somewhere"])
    assert import_path() == [str(tmp_path), "/somewhere"]


def test_sockets_of_the_parent_are_not_in_new_interpreters(entry, exit_code_of):
    """A program that is started later holds no end of an earlier channel, so that ends of file come."""
    ours, theirs = socket.socketpair()
    process, channel = spawn_process(entry("sock.recv(1)"), dict(os.environ))
    theirs.close()
    ours.settimeout(PATIENCE)
    assert ours.recv(1) == b""
    assert process.poll() is None
    channel.close()
    assert exit_code_of(process) == 0
    ours.close()
    process.release()
