"""Stacks of workers that crash or do not answer."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys

import numpy as np
import pytest
from engines import START_METHODS, make_engine, reset
from toys import CountingEnv, FaultyEnv

from fastvec import errors
from fastvec._core.stacks import StackFile

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="stacks on demand need Linux")


def failing(how, where="step", **options):
    """Three environments on two workers, the second of which fails in its first step."""
    fns = [functools.partial(FaultyEnv, i, where if i == 1 else "", how, at=1) for i in range(3)]
    return make_engine(fns, close_timeout=0.5, **options)


def step(engine):
    engine.send(np.zeros(engine.num_envs, np.int64))
    return engine.recv()


@pytest.mark.parametrize("method", START_METHODS)
def test_a_crash_in_native_code_shows_its_python_stack(method):
    """With the environment's own lines first, and nothing of what is beneath them in every worker."""
    engine = failing("SIGSEGV", start_method=method)
    reset(engine)
    with pytest.raises(errors.WorkerDiedError, match="killed by SIGSEGV") as caught:
        step(engine)
    stack = str(caught.value).partition("Its last Python stack:")[2]
    assert "Segmentation fault" in stack
    assert "in fail\n" in stack
    assert "toys.py" in stack
    assert "worker.py" not in stack
    engine.close()


@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("how", ["sleep", "busy"])
def test_a_timeout_shows_where_the_workers_are(how, method):
    """Also of one that computes in C and never gives the interpreter up."""
    engine = failing(how, start_method=method, step_timeout=0.5)
    reset(engine)
    with pytest.raises(
        errors.WorkerTimeoutError, match=r"waiting for envs \[0, 1\] of worker 0 \(pid \d+, in env 1\)"
    ) as caught:
        step(engine)
    assert "in fail\n" in str(caught.value).partition("Python stack of worker 0:")[2]
    engine.close()


def test_a_constructor_that_takes_too_long_is_shown(caplog):
    """First by lines of the watchdog, then by the error of start_timeout."""
    with pytest.raises(errors.WorkerTimeoutError, match=r"start_timeout=2.0 s: waiting for envs \[0, 1") as caught:
        failing("sleep", where="constructor", start_timeout=2.0, watchdog=0.3)
    assert "in fail\n" in str(caught.value)
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= len(lines) <= 4
    # On a busy machine the other worker may not be ready at the first.
    assert all(line.startswith("start-up has not finished after ") for line in lines)
    assert "waiting for envs [0, 1" in lines[-1]
    assert "in fail\n" in lines[-1]


def test_the_watchdog_says_for_whom_a_wait_is(caplog):
    """After its time, then after twice that; a step that takes no longer says nothing."""
    engine = failing("sleep", step_timeout=2.0, watchdog=0.3)
    reset(engine)
    with caplog.at_level(logging.WARNING, logger="fastvec"), pytest.raises(errors.WorkerTimeoutError):
        step(engine)
    # On a busy machine the reset may have taken long, too.
    lines = [line for line in map(logging.LogRecord.getMessage, caplog.records) if line.startswith("step")]
    assert 2 <= len(lines) <= 4
    assert all(line.startswith("step has not finished after ") for line in lines)
    assert "waiting for envs [0, 1] of worker 0" in lines[-1]
    assert "in fail\n" in lines[-1]
    engine.close()
    caplog.clear()
    engine = make_engine([functools.partial(CountingEnv, i) for i in range(3)], watchdog=None)
    reset(engine)
    step(engine)
    engine.close()
    assert caplog.records == []


def test_a_process_without_a_handler_is_left_alone():
    """The signal would end it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        stacks = StackFile()
        assert stacks.ask(process.pid) == ""
        assert process.poll() is None
        process.communicate(b"\n")
        assert process.returncode == 0
        stacks.close()
        assert stacks.ask(os.getpid()) == ""
        assert stacks.read() == ""
