"""Faults, made for real: whoever raises, exits, crashes, hangs or is killed, nothing hangs and nothing stays."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import psutil
import pytest
from engines import START_METHODS, eventually, make_engine, reset
from toys import BaseOnlyError, CountingEnv, FaultyEnv

from fastvec import errors
from fastvec._env_access import call_method, get_attr

#: How a fault shows in the parent: the type, and what its text or its cause's text says.
OUTCOMES = {
    "raise": (KeyError, "KeyError in {command}: 'bad torque'"),
    "odd": (errors.EnvError, "OddError in {command}: 7: bad torque"),
    "unpicklable": (errors.EnvError, "UnpicklableError in {command}: bad torque"),
    "base": (BaseOnlyError, "BaseOnlyError in {command}: bad torque"),
    "native": (SystemError, "SystemError in {command}: "),
    "sys.exit": (errors.EnvError, "SystemExit in {command}: 3"),
    "interrupt": (errors.EnvError, "KeyboardInterrupt in {command}"),
    "os._exit": (errors.WorkerDiedError, "ended itself with exit code 9"),
    "SIGKILL": (errors.WorkerDiedError, "killed by SIGKILL .*out-of-memory"),
    "SIGSEGV": (errors.WorkerDiedError, "killed by SIGSEGV .*crash in native code"),
}
PLACES = {"first": 0, "middle": 2, "last": 4}


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


@pytest.mark.parametrize("how", OUTCOMES)
@pytest.mark.parametrize("where", ["constructor", "reset", "step", "method"])
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_is_reported_with_its_place_and_cause(where, how, place):
    """Within a second, as the environment's own exception where that can be, with env, worker, pid and traceback."""
    env, (kind, text) = PLACES[place], OUTCOMES[how]
    text = text.format(command=where)
    started = time.monotonic()
    if where == "constructor":
        with pytest.raises(kind) as caught:
            faulty(where, how, env)
    else:
        engine = faulty(where, how, env)
        with pytest.raises(kind) as caught:
            provoke(engine, where)
        assert time.monotonic() - started < 20  # a hang, not a slow machine
        if kind is errors.WorkerDiedError or where != "method":
            with pytest.raises(errors.BrokenError, match="ended with an error before"):
                reset(engine)
        else:
            engine.send(np.zeros(5, np.int64))
            assert engine.recv().rewards.tolist() == [1] * 5
        engine.close()
    error = caught.value
    if kind is errors.WorkerDiedError:
        worker = [0, 0, 1, 1, 2][env]
        assert error.worker == worker
        assert error.exitcode == {"os._exit": 9, "SIGKILL": -9, "SIGSEGV": -11}[how]
        assert error.pid
        assert re.search(text, str(error))
    else:
        cause = error if kind is errors.EnvError else error.__cause__
        assert isinstance(cause, errors.EnvError)
        assert text in str(cause)
        assert (cause.env_index, cause.command) == (env, where)
        assert f"env {env} (worker {cause.worker}, pid {cause.pid})" in str(cause)
        assert "in fail" in cause.traceback or how == "native"
        assert "Traceback (most recent call last)" in cause.traceback


@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("how", ["raise", "SIGKILL"])
@pytest.mark.parametrize("where", ["constructor", "step"])
def test_every_start_method_reports_faults(method, how, where):
    """Also in the last worker, whose pipe ends earlier forks might have inherited."""

    def build_and_step():
        with contextlib.closing(faulty(where, how, 4, start_method=method)) as engine:
            provoke(engine, where)

    with pytest.raises(OUTCOMES[how][0]):
        build_and_step()


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


@pytest.mark.parametrize("how", ["sleep", "busy", "SIGSTOP"])
@pytest.mark.parametrize("where", ["step", "close"])
def test_close_ends_in_bounded_time_whatever_a_worker_does(how, where):
    """Sleeping, computing in C with the GIL held, or stopped: asked, terminated, then killed."""
    engine = faulty(where, how, 2, close_timeout=0.3, step_timeout=0.3)
    reset(engine)
    if where == "step":
        with pytest.raises(errors.WorkerTimeoutError, match=r"waiting for envs \[2, 3\]"):
            provoke(engine, "step")
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 10


def test_a_start_that_takes_too_long_ends():
    """start_timeout names the environments that are missing."""
    with pytest.raises(errors.WorkerTimeoutError, match=r"not ready .*waiting for envs \[2, 3\]") as caught:
        faulty("constructor", "sleep", 3, start_timeout=1.0, close_timeout=0.2)
    assert caught.value.env_indices == (2, 3)


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
    os.kill(engine._workers[1].process.pid, signal.SIGKILL)
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
    """Neither descriptors nor processes grow."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        engine = make_engine([functools.partial(CountingEnv, i) for i in range(2)])
        reset(engine)
        engine.close()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


# ---------------------------------------------------------------- the death of the parent

PROGRAM = """
import functools, os, signal, sys, time
import numpy as np
sys.path.insert(0, {tests!r})
from engines import make_engine, reset
from toys import CountingEnv, FaultyEnv

{before}
engine = make_engine(
    [functools.partial(FaultyEnv, i, "step", {how!r}) for i in range(4)], start_method={method!r}, close_timeout=1.0
)
reset(engine)
print(*(worker.process.pid for worker in engine._workers), flush=True)
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


def gone(pids):
    """Whether the processes have ended (a zombie that init has not yet collected has)."""
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            continue
    return True


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


def test_a_program_that_forgets_to_close_ends_quietly():
    """Interpreter exit without close(): no output, no child, exit code 0."""
    for method in START_METHODS:
        program, pids = start_program(method)
        out, err = program.communicate(timeout=20)
        assert (program.returncode, out, err) == (0, "", "")
        assert gone(pids)


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
    os.kill(engine._pool._server._process.pid, signal.SIGKILL)
    engine.send(np.zeros(2, np.int64))
    assert engine.recv().rewards.tolist() == [1, 1]
    engine.close()


def test_a_ring_that_comes_late_is_not_taken_for_the_next_reply():
    """A worker that is kept from running between its reply and its ring: every later step is still its own."""
    engine = make_engine([functools.partial(CountingEnv, i) for i in range(2)], num_workers=1)
    reset(engine)
    (worker,) = engine._workers
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
