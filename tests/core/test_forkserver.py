"""Fork servers: shared by those who agree, ended with the last of them, and exact about how workers ended."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from fastvec._core.channel import Gone, wait_for
from fastvec._core.forkserver import ForkServer, ServerKey
from fastvec._core.launch import open_pidfd, wait_for_exit
from fastvec.errors import WorkerDiedError

PATIENCE = 60.0
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def soon():
    """A deadline that only a failing test reaches."""
    return time.monotonic() + PATIENCE


class Order:
    """What a worker unpickles as its first message: code that it runs."""

    def __init__(self, code):
        self.code = code

    def __reduce__(self):
        return exec, (self.code,)


def order(code):
    return pickle.dumps(Order(f"import os, signal, sys\n{code}"))


@pytest.fixture
def acquire():
    """Acquire servers; those that a test does not release itself are released after it."""
    users = []

    def acquire(*preload, environ=None):
        server = ForkServer.acquire(ServerKey.of(preload, environ or dict(os.environ)))
        users.append(server)
        return server

    def release(server):
        users.remove(server)
        server.release()

    acquire.release = release
    yield acquire
    for server in users:
        server.release()


@pytest.fixture(scope="module")
def server():
    """One server for the tests that look at its workers only."""
    server = ForkServer.acquire(ServerKey.of((), {**os.environ, "SHARED_BY": __name__}))
    yield server
    server.release()


@pytest.fixture
def fork():
    """Have workers forked; those that a test does not end are ended after it."""
    workers = []

    def fork(server, code=None, deadline=None):
        process, channel = server.fork(deadline or soon())
        workers.append((process, channel))
        if code is not None:
            channel.send(order(code))
        return process, channel

    yield fork
    for process, channel in workers:
        process.kill(signal.SIGKILL)
        channel.close()
        process.release()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write modules that a server finds, and that mark in a file of their own every time they are imported."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, code=""):
        marks = tmp_path / f"{name}.imports"
        text = f"import os\nwith open({str(marks)!r}, 'a') as file:\n    file.write(f'{{os.getpid()}}\\n')\n{code}\n"
        (tmp_path / f"{name}.py").write_text(text)
        return marks

    return write


@pytest.fixture
def told(tmp_path, exit_code_of):
    """Have a worker evaluate an expression, and return its value."""

    def told(fork, server, expression):
        answer = tmp_path / f"answer{len(os.listdir(tmp_path))}"
        answering = f"with open({str(answer)!r}, 'wb') as file:\n    pickle.dump({expression}, file)"
        process, _ = fork(server, f"import pickle\n{answering}\nos._exit(0)")
        assert exit_code_of(process) == 0
        return pickle.loads(answer.read_bytes())

    return told


def wait_for_end(pid):
    """Wait until a process that is perhaps not ours has ended, without taking its exit code from anybody."""
    sentinel = open_pidfd(pid)
    if sentinel is not None:
        assert wait_for([sentinel], PATIENCE) == [sentinel]
        os.close(sentinel)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("os._exit(0)", 0),
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("raise ValueError('in the very first message')", 1),
    ],
    ids=["by itself", "with a code", "by SIGKILL", "by SIGTERM", "with an error"],
)
def test_the_exit_code_tells_how_a_worker_ended(server, fork, exit_code_of, code, expected):
    """Though another process is its parent, a worker's end is known to the program, and stays known."""
    process, _ = fork(server, code)
    assert exit_code_of(process) == expected
    assert process.poll() == expected


def test_the_peaks_of_workers_are_known_and_their_own(server, fork, exit_code_of):
    """What each had at most at any time, in bytes, once it has ended; this program's memory does not count."""
    workers = [fork(server, f"len(b'x' * int('{size}'))\nos._exit(0)")[0] for size in (0, 10**8, 3 * 10**8)]
    assert [exit_code_of(process) for process in workers] == [0, 0, 0]
    small, middle, large = (process.peak_rss() for process in workers)
    assert 0 < small < 10**8
    assert 0.95e8 < middle - small < 1.5e8
    assert 2.95e8 < large - small < 3.5e8
    assert large == workers[2].peak_rss()
    assert fork(server)[0].peak_rss() is None


def test_a_worker_whose_program_closes_the_channel_ends(server, fork, exit_code_of):
    """A worker that waits for its first message has no reason to live once nobody can send one."""
    process, channel = fork(server)
    assert process.poll() is None
    channel.close()
    assert exit_code_of(process) == 0


def test_a_worker_is_killed_through_its_handle(server, fork, exit_code_of):
    """It ends by the signal sent, its sentinel and its channel tell of it, and a second signal changes nothing."""
    process, channel = fork(server)
    process.kill(signal.SIGKILL)
    if process.sentinel is not None:
        assert wait_for([process.sentinel], PATIENCE) == [process.sentinel]
    with pytest.raises(Gone):
        channel.receive(deadline=soon(), sentinel=process.sentinel)
    assert exit_code_of(process) == -signal.SIGKILL
    process.kill(signal.SIGTERM)
    assert process.poll() == -signal.SIGKILL


def test_the_ends_of_several_workers_are_not_mixed_up(server, fork):
    """Workers that end in another order than they were born in each have their own code."""
    workers = [fork(server) for _ in range(4)]
    assert len({process.pid for process, _ in workers}) == 4
    for code, (_, channel) in reversed(list(enumerate(workers))):
        channel.send(order(f"os._exit({code + 10})"))
    assert wait_for_exit([process for process, _ in workers], PATIENCE) == []
    assert [process.poll() for process, _ in workers] == [10, 11, 12, 13]


def test_an_end_that_is_reported_between_two_forks_is_kept(server, fork, exit_code_of):
    """A worker that had ended before the next was asked for still has its code, and the next its own number."""
    first, channel = fork(server, "os._exit(5)")
    with pytest.raises(Gone):
        channel.receive(deadline=soon())
    second, _ = fork(server)
    assert exit_code_of(first) == 5
    assert second.pid != first.pid
    assert second.poll() is None


def test_threads_that_fork_at_the_same_time_get_their_own_workers(server, fork):
    """Each handle belongs to the channel that came with it."""
    workers = []
    threads = [threading.Thread(target=lambda: workers.append(fork(server))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({process.pid for process, _ in workers}) == 4
    for process, channel in workers:
        process.kill(signal.SIGKILL)
        with pytest.raises(Gone):
            channel.receive(deadline=soon())


def test_engines_that_agree_share_a_server_and_others_do_not(acquire):
    """The same modules, variables, path and folder mean the same server; other modules or variables another one."""
    environ = dict(os.environ)
    server = acquire("json", environ=environ)
    assert acquire("json", environ=dict(reversed(environ.items()))) is server
    assert acquire("csv", environ=environ) is not server
    assert acquire("json", environ={**environ, "MORE": "1"}) is not server


def test_a_key_is_of_the_program_as_it_is(monkeypatch, tmp_path):
    """Another folder, or another place to import from, makes another key; the order of variables does not."""
    key = ServerKey.of(("json",), {"A": "1", "B": "2"})
    assert key == ServerKey.of(("json",), {"B": "2", "A": "1"})
    monkeypatch.syspath_prepend(str(tmp_path))
    moved = ServerKey.of(("json",), {"A": "1", "B": "2"})
    assert moved != key
    monkeypatch.chdir(tmp_path)
    assert ServerKey.of(("json",), {"A": "1", "B": "2"}) != moved


def test_a_server_ends_with_its_last_user(acquire, fork, told):
    """When one of two users has released it, it still forks; after the other has, its process is gone."""
    server = acquire()
    acquire()
    pid = told(fork, server, "os.getppid()")
    acquire.release(server)
    assert told(fork, server, "os.getppid()") == pid
    acquire.release(server)
    wait_for_end(pid)
    assert not psutil.pid_exists(pid)
    again = acquire()
    assert again is not server
    assert told(fork, again, "os.getppid()") != pid


def test_a_server_ends_although_a_forked_child_of_the_program_lives(
    acquire, fork, forked, module, exit_code_of, tmp_path
):
    """The child has nothing of the server's: it ends orderly, not by being killed, when the program releases it."""
    module("ends_orderly", "import atexit\natexit.register(lambda: open(__file__ + '.ended', 'w').close())")
    server = acquire("ends_orderly")
    fork(server)
    reader, writer = os.pipe()

    def child():
        os.close(writer)
        os.read(reader, 1)

    child = forked(child)
    acquire.release(server)
    assert (tmp_path / "ends_orderly.py.ended").exists()
    assert child.poll() is None
    os.close(writer)
    assert exit_code_of(child) == 0
    os.close(reader)


def test_a_child_that_the_program_forks_does_not_end_the_server(server, fork, told, forked, exit_code_of):
    """The exit of a forked child leaves the server to the program."""
    pid = told(fork, server, "os.getppid()")
    assert exit_code_of(forked(lambda: None)) == 0
    assert told(fork, server, "os.getppid()") == pid


def test_preloaded_modules_are_imported_once_and_in_the_server(acquire, fork, told, module):
    """Workers find them imported; nobody imports them again, and the program does not import them at all."""
    marks = module("expensive_library")
    server = acquire("expensive_library")
    for _ in range(2):
        loaded, pid = told(fork, server, "('expensive_library' in sys.modules, os.getppid())")
        assert loaded
    assert marks.read_text() == f"{pid}\n"
    assert "expensive_library" not in sys.modules


@pytest.mark.parametrize(
    "code", ["raise ImportError('no such driver')", "this is no Python", "import not_installed_anywhere"]
)
def test_a_preload_that_fails_to_import_is_ignored(acquire, fork, told, module, capfd, code):
    """The worker may not need it; later modules are imported all the same, and nothing is printed."""
    module("fails_to_import", code)
    module("comes_later")
    server = acquire("fails_to_import", "not_there_at_all", "comes_later")
    assert told(fork, server, "[name in sys.modules for name in ('fails_to_import', 'comes_later')]") == [False, True]
    assert capfd.readouterr().err == ""


def test_a_preload_that_ends_the_server_is_reported(acquire, fork, module):
    """The error gives the exit code and the modules that were being imported."""
    module("ends_the_process", "os._exit(3)")
    server = acquire("ends_the_process")
    with pytest.raises(
        WorkerDiedError, match=r"the fork server .* died .* one of these imports may have: ends_the_process"
    ):
        fork(server)


def test_the_exit_code_of_a_server_that_ended_is_told(acquire, fork, module):
    """The error, and its text, have the code with which the server ended."""
    module("ends_the_process", "os._exit(3)")
    server = acquire("ends_the_process")
    with pytest.raises(WorkerDiedError, match="died with exit code 3;") as caught:
        fork(server)
    assert caught.value.exitcode == 3


def test_a_server_that_was_killed_is_reported_and_replaced(acquire, fork, told):
    """Who holds on to it gets an error that names it; who acquires one gets a new one that works."""
    server = acquire()
    pid = told(fork, server, "os.getppid()")
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    with pytest.raises(WorkerDiedError, match=rf"the fork server \(pid {pid}\) has died with exit code -9") as caught:
        fork(server)
    assert (caught.value.pid, caught.value.exitcode) == (pid, -signal.SIGKILL)
    other = acquire()
    assert other is not server
    assert told(fork, other, "os.getppid()") != pid
    acquire.release(server)
    assert told(fork, other, "1 + 1") == 2


def test_workers_have_the_variables_and_the_folder_of_their_key(acquire, fork, told, monkeypatch, tmp_path):
    """The server runs with exactly the variables given, in the folder where it was acquired."""
    monkeypatch.chdir(tmp_path)
    environ = {"ONLY": "this", "PATH": os.environ.get("PATH", "")}
    seen = told(fork, acquire(environ=environ), "(os.environ.get('ONLY'), 'HOME' in os.environ, os.getcwd())")
    assert seen == ("this", False, str(tmp_path))


def test_an_interrupt_is_left_to_the_program(server, fork, told, exit_code_of):
    """Ctrl-C reaches every process of a terminal; neither the server nor its workers end by it."""
    pid = told(fork, server, "os.getppid()")
    process, channel = fork(server)
    os.kill(pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGINT)
    assert told(fork, server, "os.getppid()") == pid
    channel.send(order("os._exit(4)"))
    assert exit_code_of(process) == 4


def test_a_worker_has_nothing_of_the_server(server, fork, told):
    """Its pipes and its channel are the server's alone: a worker has one socket, and no child to wait for."""
    fork(server)
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("needs /proc")
    paths = "[f'/proc/self/fd/{fd}' for fd in os.listdir('/proc/self/fd')]"
    names = told(fork, server, f"[os.readlink(path) for path in {paths} if os.path.exists(path)]")
    output = {os.readlink(f"/proc/self/fd/{fd}") for fd in (1, 2)}
    ours = [name for name in names if name.startswith(("socket:", "pipe:", "anon_inode:")) and name not in output]
    assert len(ours) == 1


def blocks_on(fifo):
    return f"with open({str(fifo)!r}) as fifo:\n    fifo.read()"


def test_a_server_that_is_busy_importing_is_not_waited_for_for_ever(acquire, fork, module, tmp_path):
    """A fork ends with a TimeoutError at its deadline; once the import is done, another one succeeds."""
    os.mkfifo(tmp_path / "gate")
    module("takes_long", blocks_on(tmp_path / "gate"))
    server = acquire("takes_long")
    with pytest.raises(TimeoutError):
        fork(server, deadline=time.monotonic() + 0.05)
    (tmp_path / "gate").write_text("go on")
    _, channel = fork(server, f"open({str(tmp_path / 'works')!r}, 'w').close()\nos._exit(0)")
    with pytest.raises(Gone):
        channel.receive(deadline=soon())
    assert (tmp_path / "works").exists()


def test_a_worker_that_came_too_late_is_not_taken_for_the_next_one(acquire, fork, module, tmp_path):
    """After a fork that timed out, the next handle is of the worker at the other end of the next channel."""
    os.mkfifo(tmp_path / "gate")
    module("takes_long", blocks_on(tmp_path / "gate"))
    server = acquire("takes_long")
    with pytest.raises(TimeoutError):
        fork(server, deadline=time.monotonic() + 0.05)
    (tmp_path / "gate").write_text("go on")
    process, channel = fork(server, f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nos._exit(6)")
    with pytest.raises(Gone):
        channel.receive(deadline=soon())
    assert process.pid == int((tmp_path / "pid").read_text())


def test_a_worker_outlives_a_server_that_was_killed(acquire, fork, told, tmp_path):
    """It goes on with its program; only its exit code is lost with the server."""
    server = acquire()
    pid = told(fork, server, "os.getppid()")
    process, channel = fork(server)
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    assert process.poll() is None
    channel.send(order(f"open({str(tmp_path / 'lives')!r}, 'w').close()\nos._exit(0)"))
    with pytest.raises(Gone):
        channel.receive(deadline=soon())
    assert (tmp_path / "lives").exists()


UNREAPED = """
import ctypes, os, signal, sys
from fastvec._core.channel import wait_for
from fastvec._core.forkserver import ForkServer, ServerKey
from fastvec._core.launch import wait_for_exit

# As the first process of a container: orphans become its children, and it does not wait for any.
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
server = ForkServer.acquire(ServerKey.of((), dict(os.environ)))
process, channel = server.fork(None)
os.kill(int(open(f"/proc/{process.pid}/stat").read().rpartition(")")[2].split()[1]), signal.SIGKILL)
process.kill(signal.SIGKILL)
assert wait_for([process.sentinel], 60)
sys.exit(0 if wait_for_exit([process], 1) == [] else 5)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs descriptors of processes")
def test_the_end_of_a_worker_that_nobody_reaps_is_noticed():
    """Server and worker killed, in a program that is the first of its container: the sentinel knows of the end."""
    process = subprocess.run([sys.executable, "-c", UNREAPED], timeout=120)
    assert process.returncode == 0
