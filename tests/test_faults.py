"""Faults, made for real: whoever raises, exits, crashes, hangs or is killed, nothing hangs and nothing stays."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from engines import START_METHODS, eventually, gone, make_engine, reset
from gymnasium import spaces
from toys import ConstantEnv, CountingEnv, FailingOnceEnv, FaultyEnv

from fastvec import errors
from fastvec._env_access import call_method, get_attr


def faulty(where: str, how: str, at_env: int, **options):
    """Five environments on three workers, one of which fails."""
    return make_engine(
        [functools.partial(FaultyEnv, i, where if i == at_env else "", how) for i in range(5)],
        **{"num_workers": 3, "close_timeout": 2.0, **options},
    )


def step(engine):
    engine.send(np.zeros(engine.num_envs, np.int64))
    return engine.recv()


def provoke(engine, where):
    reset(engine)
    if where == "method":
        engine.call("method", call_method, "method", env_ids=range(5))
    for _ in range(3):
        engine.send(np.zeros(5, np.int64))
        engine.recv()


class HungryEnv(CountingEnv):
    """Has so much memory at some time, not at the end, and is killed in its second step."""

    def step(self, action):
        result = super().step(action)
        if self.count == 1:
            assert len(b"x" * 200_000_000) == 200_000_000
        else:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        return result


@pytest.mark.parametrize("method", START_METHODS)
def test_the_memory_of_a_killed_worker_is_told(method):
    """By the most that it has had, where the system counts it apart from this program's."""
    engine = make_engine([functools.partial(CountingEnv, 0), functools.partial(HungryEnv, 1)], start_method=method)
    reset(engine)
    step(engine)
    with pytest.raises(errors.WorkerDiedError, match=r"killed by SIGKILL \(often .*: see `dmesg`\)") as caught:
        step(engine)
    told = re.search(r"; its resident memory was at most (\d+) MB$", str(caught.value))
    if method == "spawn":
        assert told is None
    else:
        # Pages that it shares with the process that it was forked from count, too.
        shared = psutil.Process().memory_info().rss if method == "fork" else 150e6
        assert 200 <= int(told[1]) <= 250 + shared / 1e6
    engine.close()


def test_this_process_reports_like_a_worker():
    """Without workers an exception has the same type and the same kind of cause, and its own traceback."""
    engine = faulty("step", "raise", 2, num_workers=0)
    with pytest.raises(KeyError, match="bad torque") as caught:
        provoke(engine, "step")
    assert caught.value.__cause__.env_index == 2
    assert any("toys.py" in str(entry.path) for entry in caught.traceback)
    with pytest.raises(errors.BrokenError):
        reset(engine)
    engine.close()
    engine = faulty("step", "sys.exit", 2, num_workers=0)
    with pytest.raises(errors.EnvError, match="SystemExit"):
        provoke(engine, "step")
    engine.close()


@pytest.mark.parametrize("how", ["os._exit", "SIGKILL", "SIGSEGV", "sleep"])
@pytest.mark.parametrize("where", ["step", "reset", "method"])
def test_which_environment_of_a_worker_it_was_is_told(where, how):
    """Of several in one worker: whose code was running when it died, or is running where it does not answer."""
    fns = [functools.partial(FaultyEnv, i, where if i == 2 else "", how, at=1) for i in range(5)]
    engine = make_engine(fns, num_workers=2, step_timeout=1.0, reset_timeout=1.0, close_timeout=0.2)

    def live():
        reset(engine)
        step(engine)
        engine.send_call("method", call_method, "method", env_ids=range(5))
        engine.recv_call(timeout=1.0)

    with pytest.raises((errors.WorkerDiedError, errors.WorkerTimeoutError)) as caught:
        live()
    if how == "sleep":
        assert re.search(r"waiting for envs \[0, 1, 2\] of worker 0 \(pid \d+, in env 2\)", str(caught.value))
    else:
        assert re.search(rf"worker 0 \(pid \d+, envs 0 to 2\) died during {where} of env 2: it ", str(caught.value))
        assert caught.value.env_index == 2
    engine.close()


def test_a_fault_is_seen_while_another_worker_is_stuck():
    """Worker 0 sleeps for an hour; the exception of worker 2 is raised all the same."""
    fns = [functools.partial(FaultyEnv, i, "step", how, 1) for i, how in enumerate(["sleep", "", "raise"])]
    engine = make_engine(fns, num_workers=3, close_timeout=0.2)
    reset(engine)
    engine.send(np.zeros(3, np.int64))
    started = time.monotonic()
    with pytest.raises(KeyError, match="bad torque"):
        engine.recv()
    assert time.monotonic() - started < 5
    engine.close()


def test_a_worker_killed_while_idle_is_reported_at_the_next_use():
    """SIGKILL from outside between two steps."""
    engine = make_engine([functools.partial(CountingEnv, i) for i in range(4)])
    reset(engine)
    os.kill(engine._pool.workers[1].process.pid, signal.SIGKILL)
    with pytest.raises(errors.WorkerDiedError, match=r"worker 1 \(pid \d+, envs 2 to 3\) died during step"):
        step(engine)
    engine.close()


def test_results_that_cannot_be_pickled_are_an_error_and_no_more():
    """A query for a lambda or a lock raises a TypeError that says whose; the worker lives on."""

    class LockEnv(CountingEnv):
        def __init__(self, env_id):
            super().__init__(env_id)
            import threading

            self.lock = threading.Lock()

    engine = make_engine([functools.partial(LockEnv, i) for i in range(2)])
    with pytest.raises(TypeError, match="a lock, cannot be sent") as caught:
        engine.call("get_attr", get_attr, "lock", env_ids=[1])
    assert caught.value.__cause__.env_index == 1
    assert engine.call("get_attr", get_attr, "env_id", env_ids=[1]) == [1]
    engine.close()


def test_50_engines_one_after_the_other_leave_nothing():
    """Neither descriptors nor processes nor memory grow, of which each shares some with its workers."""
    process, space = psutil.Process(), spaces.Box(0, 255, (512, 512, 3), np.uint8)
    held = []
    for count in range(60):
        engine = make_engine([functools.partial(ConstantEnv, space, np.zeros(space.shape, np.uint8))] * 2)
        reset(engine)
        step(engine)
        engine.close()
        if count in (9, 59):
            gc.collect()
            held.append((process.num_fds(), len(process.children()), process.memory_info().rss))
    (descriptors, processes, memory), after = held
    assert after[:2] == (descriptors, processes)
    assert after[2] - memory < 8e6


@pytest.mark.parametrize("how", ["none", "raise", "os._exit", "sleep", "SIGSTOP", "flood"])
def test_an_error_of_the_caller_between_send_and_recv_is_the_one_that_is_raised(how, tmp_path, capfd):
    """Whatever becomes of the step that nobody receives, close() ends it and says nothing."""
    flag = tmp_path / "failed"
    fns = [functools.partial(FailingOnceEnv, i, str(flag), "step" if i == 1 else "", how, at=2) for i in range(4)]
    started = time.monotonic()
    options = {"close_timeout": 0.5 if how in ("sleep", "SIGSTOP") else 60.0}
    with pytest.raises(ZeroDivisionError), contextlib.closing(make_engine(fns, **options)) as engine:  # noqa: PT012
        reset(engine)
        step(engine)
        engine.send(np.zeros(4, np.int64))
        assert eventually(flag.exists, 60)
        1 / 0  # noqa: B018
    assert time.monotonic() - started < 60  # a hang, not a slow machine
    out, err = capfd.readouterr()
    assert (set(out), set(err)) == ((set("x\n"), set("x\n")) if how == "flood" else (set(), set()))


# ---------------------------------------------------------------- threads


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_threads_may_build_use_and_close(method):
    """One thread builds it, another steps it, a third closes it, one after the other; workers live on meanwhile."""

    def in_thread(function, *args):
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(function, *args).result(60)

    engine = in_thread(lambda: make_engine([functools.partial(CountingEnv, i) for i in range(4)], start_method=method))
    reset(engine)
    for count in range(1, 4):
        assert in_thread(step, engine).rewards.tolist() == [count] * 4
    assert step(engine).rewards.tolist() == [4] * 4
    in_thread(engine.close)
    with pytest.raises(errors.ClosedError):
        reset(engine)


def test_each_thread_may_have_an_engine_of_its_own():
    """Built, stepped and closed at the same time, from one fork server: nobody sees anything of the others."""

    def run(offset):
        fns = [functools.partial(CountingEnv, offset + i) for i in range(2)]
        with contextlib.closing(make_engine(fns, start_method="forkserver")) as engine:
            reset(engine)
            return [step(engine).observations.tolist() for _ in range(50)]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(run, range(0, 40, 10)))
    assert found == [
        [[[offset, 0, count], [offset + 1, 0, count]] for count in range(1, 51)] for offset in range(0, 40, 10)
    ]


def test_close_in_another_thread_ends_a_wait():
    """The wait says that the environments have been closed."""
    engine = make_engine([functools.partial(FaultyEnv, i, "step", "sleep", at=1) for i in range(2)], close_timeout=0.2)
    reset(engine)
    engine.send(np.zeros(2, np.int64))
    timer = threading.Timer(0.3, engine.close)
    timer.start()
    with pytest.raises(errors.ClosedError, match="have been closed"):
        engine.recv()
    timer.join()


# ---------------------------------------------------------------- the death of the parent

PROGRAM = """
import functools, os, signal, sys, time
import numpy as np
sys.path.insert(0, {tests!r})
from engines import make_engine, reset
from toys import CountingEnv, FaultyEnv

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
{before}
engine = make_engine(
    [functools.partial(FaultyEnv, i, "step", {how!r}) for i in range(4)], start_method={method!r}, close_timeout=1.0
)
reset(engine)
print(*(worker.process.pid for worker in engine._pool.workers), flush=True)
{rest}
"""


def start_program(method="fork", how="", rest="", before="", **kwargs):
    """A program with two workers; returns it and their pids."""
    code = PROGRAM.format(
        tests=os.path.dirname(__file__), method=method, how=how, rest=textwrap.dedent(rest), before=before
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs
    )
    pids = [int(pid) for pid in program.stdout.readline().split()]
    if not pids:
        pytest.fail(program.communicate()[1])
    return program, pids


@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("how", ["", "sleep", "busy"])
def test_workers_die_with_their_parent(method, how):
    """After SIGKILL of the parent idle, sleeping and computing workers (GIL held) are gone within moments."""
    rest = "engine.send(np.zeros(4, np.int64)); engine.recv()\n" * 2
    rest += "engine.send(np.zeros(4, np.int64)); print('sent', flush=True); time.sleep(60)"
    program, pids = start_program(method, how, rest)
    assert program.stdout.readline() == "sent\n"
    program.kill()
    program.communicate()
    assert eventually(lambda: gone(pids), 5)


@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize(
    ("how", "rest"),
    [
        ("", ""),
        ("", "engine.send(np.zeros(4, np.int64))"),
        ("sleep", "for _ in range(3): engine.send(np.zeros(4, np.int64)), _ < 2 and engine.recv()"),
    ],
    ids=["idle", "pending", "stuck"],
)
def test_a_program_that_forgets_to_close_ends_quietly(method, how, rest, tmp_path):
    """Interpreter exit without close(): no output, no child, no file, exit code 0."""
    program, pids = start_program(method, how, rest, env={**os.environ, "TMPDIR": str(tmp_path)})
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out, err) == (0, "", "")
    assert gone(pids)
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_ends_with_an_error_shows_no_other():
    """An exception of its own while a step is pending: one traceback, and nothing stays."""
    program, pids = start_program(rest="engine.send(np.zeros(4, np.int64)); raise KeyError('mine')")
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out) == (1, "")
    assert err.count("Traceback") == 1
    assert err.endswith("KeyError: 'mine'\n")
    assert gone(pids)


@pytest.mark.parametrize("method", START_METHODS)
def test_a_debugger_in_the_program_is_no_hindrance(method, tmp_path):
    """A traced program starts, steps, stops at a breakpoint between two steps, and closes."""
    rest = """
    engine.send(np.zeros(4, np.int64))
    print(engine.recv().rewards)
    engine.send(np.zeros(4, np.int64))
    breakpoint()
    print(engine.recv().rewards)
    engine.close()
    """
    path = tmp_path / "program.py"
    path.write_text(
        PROGRAM.format(tests=os.path.dirname(__file__), method=method, how="", rest=textwrap.dedent(rest), before="")
    )
    command = [sys.executable, "-m", "pdb", "-c", "continue", str(path)]
    done = subprocess.run(
        command, input="p 6 * 7\ncontinue\nquit\n", capture_output=True, text=True, timeout=60, check=False
    )
    for expected in ("[1. 1. 1. 1.]", "(Pdb) 42", "[2. 2. 2. 2.]", "The program finished"):
        assert expected in done.stdout, done.stdout + done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("theirs", START_METHODS)
def test_the_start_method_of_multiprocessing_is_the_programs(theirs):
    """Engines do not look at it, do not change it, and do not set it for the first time."""
    program, _ = start_program(
        before="import multiprocessing",
        rest=f"""
        engine.close()
        assert multiprocessing.get_start_method(allow_none=True) is None
        multiprocessing.set_start_method({theirs!r})
        for method in ("fork", "forkserver"):
            engine = make_engine([functools.partial(CountingEnv, i) for i in range(2)], start_method=method)
            reset(engine)
            engine.send(np.zeros(2, np.int64))
            print(*engine.recv().rewards)
            engine.close()
        print(multiprocessing.get_start_method())
        """,
    )
    out, err = program.communicate(timeout=60)
    assert (out, err) == (f"1.0 1.0\n1.0 1.0\n{theirs}\n", "")


def test_ctrl_c_gives_one_traceback():
    """SIGINT to the whole group in a step: one KeyboardInterrupt, in the parent; nobody is left."""
    program, pids = start_program(
        how="sleep",
        rest="""
        for _ in range(3):
            engine.send(np.zeros(4, np.int64))
            if _ == 2:
                print("sent", flush=True)
            engine.recv()
        """,
        start_new_session=True,
    )
    assert program.stdout.readline() == "sent\n"
    os.killpg(program.pid, signal.SIGINT)
    _, err = program.communicate(timeout=20)
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert eventually(lambda: gone(pids))


def test_after_an_interrupt_the_step_can_still_be_received():
    """KeyboardInterrupt in recv() leaves the step pending; its result is complete and its own."""
    program, _ = start_program(
        rest="""
        import threading
        from toys import SleepyEnv
        engine.close()
        engine = make_engine([functools.partial(SleepyEnv, i, 1, 0.5) for i in range(2)])
        reset(engine)
        engine.send(np.zeros(2, np.int64))
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            engine.recv()
        except KeyboardInterrupt:
            print("interrupted", engine.recv().rewards.tolist())
        engine.send(np.zeros(2, np.int64))
        print(engine.recv().rewards.tolist())
        """
    )
    out, err = program.communicate(timeout=30)
    assert out == "interrupted [1.0, 1.0]\n[2.0, 2.0]\n", err


def test_a_dead_fork_server_is_survived():
    """Workers outlive the server that forked them; the engine goes on and closes."""
    engine = make_engine([functools.partial(CountingEnv, i) for i in range(2)], start_method="forkserver")
    reset(engine)
    os.kill(engine._pool._starter._server._process.pid, signal.SIGKILL)
    engine.send(np.zeros(2, np.int64))
    assert engine.recv().rewards.tolist() == [1, 1]
    engine.close()


def test_a_ring_that_comes_late_is_not_taken_for_the_next_reply():
    """A worker that is kept from running between its reply and its ring: every later step is still its own."""
    engine = make_engine([functools.partial(CountingEnv, i) for i in range(2)], num_workers=1)
    reset(engine)
    (worker,) = engine._pool.workers
    for count in range(1, 40):
        engine.send(np.zeros(2, np.int64))
        if count % 5 == 0:
            worker.reply_bell.ring()  # what a late ring looks like
        assert engine.recv().rewards.tolist() == [count] * 2
    engine.close()


def test_interrupts_while_a_large_reply_comes_lose_nothing():
    """KeyboardInterrupt again and again at any moment of recv(): each step is received whole, and once."""
    program, _ = start_program(
        rest="""
        from toys import BigInfoEnv
        engine.close()
        engine = make_engine([functools.partial(BigInfoEnv, i) for i in range(2)])
        reset(engine)
        interrupts = 0
        for count in range(1, 21):
            engine.send(np.zeros(2, np.int64))
            result = None
            delays = [0.0005 * count, 0.001]
            while result is None:
                try:
                    signal.setitimer(signal.ITIMER_REAL, delays.pop() if delays else 0)
                    result = engine.recv()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupts += 1
            assert result.rewards.tolist() == [count] * 2
            assert [info["blob"][: len(str(count))] for info in result.infos] == [str(count)] * 2
            assert [info["count"] for info in result.infos] == [count] * 2
        print("interrupted" if interrupts else "never")
        engine.close()
        """,
        before="signal.signal(signal.SIGALRM, signal.default_int_handler)",
    )
    out, err = program.communicate(timeout=60)
    assert out == "interrupted\n", err
