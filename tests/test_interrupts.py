"""Ctrl-C, alarms and failures in the midst of a conversation: what was pending stays right, or says that it is not."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time

import numpy as np
import pytest
from engines import eventually, make_engine, reset
from toys import CountingEnv, SleepyEnv

from fastvec import errors
from fastvec._core.state import EngineState


def step(engine):
    engine.send(np.zeros(engine.num_envs, np.int64))
    return engine.recv()


class InterruptingEnv(CountingEnv):
    """Raises KeyboardInterrupt in one step; its infos have keys of their own."""

    interrupted = False

    def step(self, action):
        if self.env_id == 1 and not type(self).interrupted:
            type(self).interrupted = True
            raise KeyboardInterrupt
        *rest, _ = super().step(action)
        return (*rest, {f"mine {self.env_id}": self.count})


def test_infos_first_seen_in_an_interrupted_step_are_known_afterwards(monkeypatch):
    """A kind of info is announced once, be it in the reset after the interrupt."""
    monkeypatch.setattr(InterruptingEnv, "interrupted", False)
    engine = make_engine([functools.partial(InterruptingEnv, i) for i in range(2)], num_workers=0)
    reset(engine)
    with pytest.raises(KeyboardInterrupt):
        step(engine)
    reset(engine)
    assert step(engine).infos == [{"mine 0": 1}, {"mine 1": 1}]
    engine.close()


class LateInterruptEnv(CountingEnv):
    """Raises KeyboardInterrupt in its second reset, once."""

    def reset(self, *, seed=None, options=None):
        if len(self.reset_calls) == 1:
            self.reset_calls.append("interrupted")
            raise KeyboardInterrupt
        return super().reset(seed=seed, options=options)


def test_an_interrupted_late_reset_is_made_up_for():
    """The next step resets; an environment that has ended is never stepped."""
    from fastvec._core.config import AutoresetMode

    fns = [functools.partial(LateInterruptEnv, 0, horizon=1)]
    engine = make_engine(fns, num_workers=0, autoreset_mode=AutoresetMode.NEXT_STEP)
    reset(engine)
    step(engine)
    with pytest.raises(KeyboardInterrupt):
        step(engine)
    assert step(engine).observations.tolist() == [[0, 1, 0]]
    engine.close()


def test_a_reset_that_cannot_be_sent_leaves_the_pending_step():
    """Also when a call in passing has received it already."""
    engine = make_engine([functools.partial(CountingEnv, i) for i in range(2)])
    reset(engine)
    engine.send([0, 0])
    assert engine.call("n", count_of, env_ids=[0, 1]) == [1, 1]
    with pytest.raises(TypeError, match="pickle"):
        engine.reset([{"options": {"lock": threading.Lock()}}] * 2)
    assert [info["count"] for info in engine.recv().infos] == [1, 1]
    engine.close()


def count_of(env):
    return env.count


def test_a_reset_that_came_too_early_loses_nothing_of_the_step():
    """It times out while one reply is there and one is not: both are in the step that is still pending."""
    fns = [functools.partial(SleepyEnv, i, at=1 if i == 1 else 0, seconds=0.6) for i in range(2)]
    engine = make_engine(fns, reset_timeout=0.1)
    engine.reset([{}] * 2)
    engine.send([0, 0])
    with pytest.raises(errors.WorkerTimeoutError):
        engine.reset([{}] * 2)
    assert engine.state is EngineState.STEPPING
    assert [info["count"] for info in engine.recv().infos] == [1, 1]
    engine.close()


def test_an_info_that_cannot_be_rebuilt_here_breaks_a_reset_too():
    """Once, with its reason; the way on is close()."""

    class Poisoned(CountingEnv):
        def reset(self, *, seed=None, options=None):
            return super().reset()[0], {"poison": Poison()}

    engine = make_engine([functools.partial(Poisoned, 0)], num_workers=1)
    engine.send_reset([{}])
    with pytest.raises(errors.InfoError, match="cannot be unpickled here: RuntimeError"):
        engine.recv_reset()
    with pytest.raises(errors.BrokenError):
        reset(engine)
    engine.close()


class Poison:
    def __reduce__(self):
        return _explode, (os.getpid(),)


def _explode(pid):
    raise RuntimeError(f"made in {pid}")


class SlowToCloseEnv(CountingEnv):
    def close(self):
        time.sleep(1)


def test_close_goes_on_after_an_interrupt():
    """The second call ends the worker and gives everything back."""
    engine = make_engine([functools.partial(SlowToCloseEnv, 0)], num_workers=1, close_timeout=30.0)
    reset(engine)
    (pid,) = engine.call("pid", lambda env: os.getpid(), env_ids=[0])
    before = signal.signal(signal.SIGALRM, raise_interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            engine.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(errors.ClosedError):
        reset(engine)
    engine.close()
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))


def raise_interrupt(*_):
    raise KeyboardInterrupt


def test_close_in_a_signal_handler_ends_the_wait():
    """The wait says that the environments have been closed."""
    engine = make_engine([functools.partial(SleepyEnv, 0, at=1, seconds=60)], num_workers=1, close_timeout=0.2)
    reset(engine)
    engine.send([0])
    before = signal.signal(signal.SIGALRM, lambda *_: engine.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(errors.ClosedError):
            engine.recv()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert engine.state is EngineState.CLOSED


def test_a_look_costs_the_workers_nothing():
    """recv(timeout=0) asks nobody for a stack."""
    engine = make_engine([functools.partial(SleepyEnv, 0, at=1, seconds=0.5)], num_workers=1)
    reset(engine)
    engine.send([0])
    looks = []
    while True:
        try:
            result = engine.recv(timeout=0)
            break
        except errors.WorkerTimeoutError as error:
            looks.append(str(error))
    assert len(looks) > 5
    assert not any("stack" in look for look in looks)
    assert result.rewards.tolist() == [1]
    engine.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_no_environment_is_said(workers):
    """A factory of something else, and the old gym API."""

    class Old(CountingEnv):
        def step(self, action):
            return super().step(action)[:4]

    class OldReset(CountingEnv):
        def reset(self):
            return np.zeros(2, np.float32)

    with pytest.raises(errors.FactoryError, match="env 0 returned a int: expected an environment"):
        make_engine([lambda: 3], num_workers=workers)
    engine = make_engine([functools.partial(Old, 0)], num_workers=workers)
    reset(engine)
    with pytest.raises(errors.EnvError, match=r"step\(\) must return .* got 4 values: .* old gym API"):
        step(engine)
    engine.close()
    engine = make_engine([functools.partial(OldReset, 0)], num_workers=workers)
    with pytest.raises(errors.InfoError, match=r"a dict as info, got a float32: .* old gym API"):
        engine.reset([{}])
    engine.close()
