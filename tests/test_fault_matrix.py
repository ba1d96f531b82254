"""Every fault at every place under every start method: what the parent is told, how it ends, and what is left.

Plain ``pytest`` runs a sample, in which each two values of different parameters come together somewhere;
``make faults`` runs all.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
import tempfile
import time
from typing import NamedTuple

import numpy as np
import pytest
from engines import START_METHODS, eventually, gone, make_engine, reset
from toys import FLOOD, FLOODS, HUGE, HUGES, BaseOnlyError, WitnessedEnv

from fastvec import errors
from fastvec._env_access import call_method

WORKERS = {"first": 0, "middle": 1, "last": 2}
ENVS_A_WORKER = {"one": 1, "several": 2}
COMMANDS = ("reset", "step", "method", "render")

#: What an environment raises: the type in the parent, and what the text says of it.
RAISING = {
    "raise": (KeyError, "KeyError in {where}: 'bad torque'"),
    "odd": (errors.EnvError, "OddError in {where}: 7: bad torque"),
    "unpicklable": (errors.EnvError, "UnpicklableError in {where}: bad torque"),
    "base": (BaseOnlyError, "BaseOnlyError in {where}: bad torque"),
    "native": (SystemError, "SystemError in {where}: "),
    "interrupt": (errors.EnvError, "KeyboardInterrupt in {where}"),
    "sys.exit": (errors.EnvError, "SystemExit in {where}: 3"),
}
#: What ends a worker: its exit code, and what the text says of it.
DEADLY = {
    "os._exit": (9, "it ended itself with exit code 9"),
    "SIGKILL": (-signal.SIGKILL, "it was killed by SIGKILL (often the kernel's out-of-memory killer"),
    "SIGSEGV": (-signal.SIGSEGV, "it was killed by SIGSEGV (a crash in native code"),
}
#: What keeps a worker from answering.
HANGING = ("SIGSTOP", "sleep", "busy")
#: What is no fault, and must not become one.
HARMLESS = ("flood", "huge")

#: Seconds from a fault, or from the timeout that finds it, to the error, on a machine that does much else. Otherwise
#: it is a fraction of one; who waits for something that never comes exceeds this too.
PATIENCE = 10.0
#: Seconds that a start is given where an environment's constructor hangs; doubled until they were enough to get there.
START = {"fork": 1.0, "spawn": 4.0, "forkserver": 4.0}
#: After `close_timeout` workers are terminated, and then killed, with a second for each.
KILLING = 2.0


class Case(NamedTuple):
    method: str
    place: str
    envs: str
    where: str
    how: str

    @property
    def worker(self) -> int:
        return WORKERS[self.place]

    @property
    def env_ids(self) -> range:
        """Of the worker; the last one fails."""
        count = ENVS_A_WORKER[self.envs]
        return range(self.worker * count, (self.worker + 1) * count)

    @property
    def env(self) -> int:
        return self.env_ids[-1]

    @property
    def num_envs(self) -> int:
        return len(WORKERS) * len(self.env_ids)

    @property
    def breaks(self) -> bool:
        """Whether the environments are of no more use; what raises in a query does not end them."""
        return self.how in DEADLY or (self.how in RAISING and self.where in ("reset", "step"))

    def pairs(self):
        return set(itertools.combinations(enumerate(self), 2))


def possible(case: Case) -> bool:
    # A constructor returns nothing, and nobody waits for what close() returns.
    return not (case.how == "huge" and case.where in ("constructor", "close"))


CASES = [
    case
    for parameters in itertools.product(
        START_METHODS,
        WORKERS,
        ENVS_A_WORKER,
        ("constructor", *COMMANDS, "close"),
        (*RAISING, *DEADLY, *HANGING, *HARMLESS),
    )
    if possible(case := Case(*parameters))
]


def sample(cases):
    """Few of the cases, with all pairs of values that are in any: always one with the most that are missing.

    Of several such the first is taken, so that of the start methods the fastest is the most frequent.
    """
    pairs = [case.pairs() for case in cases]
    missing = set().union(*pairs)
    found = []
    while missing:
        best = max(range(len(cases)), key=lambda i: len(pairs[i] & missing))
        missing -= pairs[best]
        found.append(cases[best])
    return found


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        cases = CASES if metafunc.config.getoption("--all-faults", False) else sample(CASES)
        metafunc.parametrize("case", cases, ids="-".join)


def test_the_sample_has_each_two_values_together():
    """As long as the product of the two longest parameters, or little longer."""
    chosen = sample(CASES)
    values = [set(column) for column in zip(*CASES, strict=True)]
    assert [len(column) for column in values] == [3, 3, 2, 6, 15]
    together = set().union(*(case.pairs() for case in chosen))
    for (i, ones), (j, others) in itertools.combinations(enumerate(values), 2):
        for one, other in itertools.product(ones, others):
            impossible = {one, other} in ({"huge", "constructor"}, {"huge", "close"})
            assert (((i, one), (j, other)) in together) is not impossible
    assert len(chosen) < 6 * 15 + 15


class Witnesses:
    """The files by which environments tell what has come to pass."""

    def __init__(self, folder):
        self.folder = folder

    def pids(self, event):
        return [int(path.name.split("-")[1]) for path in self.folder.glob(f"{event}-*")]

    def forget(self, event):
        for path in self.folder.glob(f"{event}-*"):
            path.unlink()

    def closed(self):
        """The environments whose close() has returned."""
        return set(self.pids("closed"))

    def since_fault(self):
        """Seconds since an environment was about to fail."""
        (path,) = self.folder.glob("fault-*")
        return time.time() - path.stat().st_mtime


@pytest.fixture
def witnesses(tmp_path, monkeypatch):
    """Where they tell; temporary files would be in a folder of their own, and none is left there."""
    for folder in ("told", "temporary"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    yield Witnesses(tmp_path / "told")
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.timeout(150)
def test_a_fault(case, witnesses, capfd):
    """It is reported with its place and cause; what can go on goes on; close() ends in time and nothing stays."""
    engine, error = start(case, witnesses)
    if engine is not None:
        error = error or use(engine, case, witnesses)
        goes_on(engine, case, error)
        close(engine, case)
    if case.where != "close" and case.how not in HARMLESS:
        tells_of(error, case, witnesses)
    (pid,) = witnesses.pids("fault")
    assert eventually(lambda: gone([pid]))
    leaves_nothing(case, witnesses)
    says_no_more_than_it_must(case, *capfd.readouterr())


def start(case, witnesses):
    """An engine, or the error of its start."""
    hanging = case.how in HANGING
    seconds = START[case.method] if hanging and case.where == "constructor" else 100.0
    fns = [
        functools.partial(WitnessedEnv, i, witnesses.folder, case.where if i == case.env else "", case.how)
        for i in range(case.num_envs)
    ]
    options = {"start_method": case.method, "close_timeout": 0.3 if hanging else 60.0}
    while True:
        try:
            return make_engine(fns, num_workers=len(WORKERS), start_timeout=seconds, **options), None
        except expected(case) as error:
            assert case.where == "constructor"
            late = isinstance(error, errors.WorkerTimeoutError)
            if late and seconds < 60 and not (witnesses.pids("fault") and shows_where(error, case)):
                seconds *= 2
                witnesses.forget("fault")
                continue
            assert witnesses.since_fault() < PATIENCE + (seconds + 1.0 + KILLING if late else 0.0)
            return None, error


def expected(case):
    """The type of the error; a harmless fault has none."""
    if case.how in RAISING:
        return RAISING[case.how][0]
    return errors.WorkerDiedError if case.how in DEADLY else errors.WorkerTimeoutError


def use(engine, case, witnesses):
    """Have the fault happen; the error that tells of it."""
    if case.where != "reset":
        is_right(engine, case)
    if case.where not in COMMANDS:
        return None
    send, receive = {
        "reset": (functools.partial(engine.send_reset, [{}] * case.num_envs), engine.recv_reset),
        "step": (functools.partial(engine.send, np.zeros(case.num_envs, np.int64)), engine.recv),
    }.get(case.where, (functools.partial(call, engine.send_call, case), engine.recv_call))
    if case.how in HANGING:
        send()
        assert eventually(lambda: witnesses.pids("fault"), 60)
        for _ in range(10):
            started = time.monotonic()
            with pytest.raises(errors.WorkerTimeoutError) as caught:
                receive(0.5)
            assert time.monotonic() - started < 0.5 + PATIENCE
            if shows_where(caught.value, case):
                break
        with pytest.raises(errors.WorkerTimeoutError, match=rf"{case.where} did not finish .*worker {case.worker} "):
            receive(0.0)
        with pytest.raises(errors.CallError, match="is pending already: receive it before"):
            send()
        return caught.value
    at_once = {
        "reset": functools.partial(reset, engine),
        "step": lambda: (send(), receive())[1],
    }.get(case.where, functools.partial(call, engine.call, case))
    if case.how in HARMLESS:
        result = at_once()
        results = [info["result"] for info in result.infos] if case.where in ("reset", "step") else result
        wanted = HUGE * HUGES if case.how == "huge" else None
        assert [one == (wanted if i == case.env else None) for i, one in enumerate(results)] == [True] * case.num_envs
        return None
    with pytest.raises(expected(case)) as caught:
        at_once()
    assert witnesses.since_fault() < PATIENCE
    return caught.value


def shows_where(error, case):
    """Whether the stack is in the error: where all CPUs are busy, a worker may not write it in the time it has.

    A stopped process cannot at all.
    """
    return case.how == "SIGSTOP" or "in fail\n" in str(error).partition(f"Python stack of worker {case.worker}:")[2]


def call(how, case):
    return how(case.where, call_method, case.where, env_ids=range(case.num_envs))


def is_right(engine, case):
    """A reset and a step: everybody's are its own."""
    reset(engine)
    engine.send(np.zeros(case.num_envs, np.int64))
    assert engine.recv().observations.tolist() == [[i, 0, 1] for i in range(case.num_envs)]


def goes_on(engine, case, error):
    """What is broken says so, and why; everything else works, with what is pending received or dropped."""
    if case.where == "close" or case.how in HANGING:
        return
    if not case.breaks:
        engine.send(np.zeros(case.num_envs, np.int64))
        taken = {"constructor": 2, "reset": 1, "step": 3, "method": 2, "render": 2}[case.where]
        assert engine.recv().rewards.tolist() == [taken] * case.num_envs
        return
    cause = error.__cause__ or error
    reason = re.escape(str(cause).splitlines()[0])
    for later in (
        functools.partial(reset, engine),
        functools.partial(engine.send, np.zeros(case.num_envs, np.int64)),
        functools.partial(call, engine.call, case),
    ):
        with pytest.raises(errors.BrokenError, match=rf"ended with an error before \({reason}\)\. Call close\(\)"):
            later()


def close(engine, case):
    """In its time, however often; and then it is closed."""
    started = time.monotonic()
    engine.close()
    engine.close()
    # Others than a hanging worker end at once, whatever the timeout.
    assert time.monotonic() - started < PATIENCE + (0.3 + KILLING if case.how in HANGING else 0.0)
    with pytest.raises(errors.ClosedError, match="have been closed"):
        reset(engine)


def tells_of(error, case, witnesses):
    """The error names environment, worker, command and cause, with the worker's traceback or stack."""
    (pid,) = witnesses.pids("fault")
    text, ids = str(error), list(case.env_ids)
    # Which of several is known from the first reset on.
    several = len(ids) > 1 and case.where != "constructor"
    if case.how in RAISING:
        cause = error if type(error) is errors.EnvError else error.__cause__
        text = RAISING[case.how][1].format(where=case.where)
        assert (cause.env_index, cause.worker, cause.pid, cause.command) == (case.env, case.worker, pid, case.where)
        assert str(cause).startswith(f"env {case.env} (worker {case.worker}, pid {pid}) raised {text}")
        assert "Traceback (most recent call last)" in cause.traceback
        assert "in fail\n" in cause.traceback
        assert cause.traceback in str(cause)
    elif case.how in DEADLY:
        envs = f"env {ids[0]}" if len(ids) == 1 else f"envs {ids[0]} to {ids[-1]}"
        command = "start-up" if case.where == "constructor" else case.where
        code, cause = DEADLY[case.how]
        of = f" of env {case.env}" if several else ""
        assert (error.worker, error.pid, error.exitcode) == (case.worker, pid, code)
        assert text.startswith(f"worker {case.worker} (pid {pid}, {envs}) died during {command}{of}: {cause}")
        # Nobody is asked before the other two.
        stack = text.partition("Its last Python stack:")[2]
        assert "in fail\n" in stack if case.how == "SIGSEGV" else not stack
    else:
        ready = {"constructor": "the environments were not ready within start_timeout"}
        assert text.startswith(ready.get(case.where, f"{case.where} did not finish within 0.5 s: waiting for envs "))
        # On a busy machine others may be late, too.
        assert set(ids) <= set(error.env_indices)
        assert f"worker {case.worker} (pid {pid}{f', in env {case.env}' if several else ''})" in text
        assert shows_where(error, case)


def leaves_nothing(case, witnesses):
    """A worker that ends in the normal way takes its children along, and whoever lives closes its environments."""
    children = witnesses.pids("child")
    assert children
    if case.how in RAISING or case.how in HARMLESS:
        assert eventually(lambda: gone(children))
    else:
        for pid in children:
            if not gone([pid]):
                os.kill(pid, signal.SIGKILL)
    closed = set(range(case.num_envs))
    if case.where == "close" and case.how not in HARMLESS:
        closed -= {case.env}
    elif case.how in DEADLY:
        closed -= set(case.env_ids)
    # Those who had little time may or may not have.
    if case.how not in HANGING and (case.where != "constructor" or case.how in HARMLESS):
        assert witnesses.closed() == closed


def says_no_more_than_it_must(case, out, err):
    """Nothing but what environments print, and what they raise in close(), of which nobody else would hear."""
    if case.how == "flood":
        assert (out == FLOOD * FLOODS, err == FLOOD * FLOODS) == (True, True)
    elif case.where == "close" and case.how in RAISING:
        assert out == ""
        assert "Traceback (most recent call last)" in err
        assert "in fail\n" in err
    else:
        assert (out, err) == ("", "")
