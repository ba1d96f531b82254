"""What a step costs, counted and not timed: pickles, copies, wake-ups and system calls, in the program and in workers.

Everything is counted over some steps and over twice as many; the difference is what a step costs in the steady state,
without what a count itself costs. The numbers are the same on every machine, busy or not.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tracemalloc
from collections import Counter

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from fastvec import SharedMemVectorEnv
from fastvec._core.sync import SemaphoreBell, semaphores_work

pytestmark = pytest.mark.skipif(not semaphores_work(), reason="workers are woken in another way here")

N, WORKERS, STEPS = 6, 2, 20

#: Functions of C that ask something of the system. Those who wait may yield, or look whether a worker lives, as often
#: as time makes them.
SYSTEM = re.compile(
    r"(posix|_socket|socket|select|mmap|_io|_posixsubprocess)\.(?!sched_yield|waitpid|kill)|socket\.\w+"
)
PICKLES = re.compile(r"_pickle\.(dumps|loads|dump|load)|_?[Pp]ickler|.*\b(dump|load)s?$")

#: Of this process; a worker has its own after the fork.
RINGS = Counter()
CALLS = Counter()


def note(frame, event, function):
    """Count a call of a function of C."""
    if event == "c_call":
        CALLS[f"{function.__module__ or ''}.{function.__qualname__}".lstrip(".")] += 1


class MeteredEnv(gymnasium.Env):
    """Counts what the process does that it lives in; observes a picture, and tells what it is told to."""

    def __init__(self, info=None, horizon=None) -> None:
        self.observation_space = spaces.Box(-1, 1, (100, 100), np.float32)
        self.action_space = spaces.Discrete(3)
        self.picture = np.zeros((100, 100), np.float32)
        self.info, self.horizon, self.count = info or {}, horizon, 0

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.picture, {}

    def step(self, action):
        self.count += 1
        return self.picture, 1.0, False, self.count == self.horizon, dict(self.info)

    def start_meter(self) -> None:
        CALLS.clear()
        sys.setprofile(note)

    def stop_meter(self) -> tuple[Counter, int]:
        sys.setprofile(None)
        return Counter(CALLS), RINGS["ring"]


@pytest.fixture(params=["sb3", "gymnasium"])
def build(request, monkeypatch):
    """A batch of one of the faces, whose bells are counted in all processes, and its method that calls methods."""
    ring = SemaphoreBell.ring

    def counted(bell):
        RINGS["ring"] += 1
        ring(bell)

    monkeypatch.setattr(SemaphoreBell, "ring", counted)
    if request.param == "sb3":
        pytest.importorskip("stable_baselines3")
        from fastvec import SharedMemVecEnv as Face
    else:
        Face = SharedMemVectorEnv
    venvs = []

    def build(**options):
        venv = Face([lambda: MeteredEnv(**options)] * N, num_workers=WORKERS, start_method="fork")
        venvs.append(venv)
        venv.reset()
        # What is new is announced, and what is not used any more given back, in the first steps.
        advance(venv, STEPS)
        return venv, venv.env_method if request.param == "sb3" else venv.call

    yield build
    for venv in venvs:
        venv.close()


def advance(venv, steps):
    actions = np.ones(N, np.int64)
    for _ in range(steps):
        venv.step(actions)


def per_step(count):
    """The cost of a step by name, of what ``count(steps)`` counts; the lesser of two, as waiting may add to it."""
    found = []
    for _ in range(2):
        once, twice = count(STEPS), count(2 * STEPS)
        found.append({name: twice[name] - once[name] for name in {**once, **twice}})
    # One more or less is what the command to begin came in, in one piece or two.
    least = {name: min(one.get(name, 0) for one in found) for name in found[0]}
    return {name: difference / STEPS for name, difference in least.items() if abs(difference) > 1}


def calls_in_program(venv):
    """Calls of functions of C in this process, a step."""

    def count(steps):
        CALLS.clear()
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            advance(venv, steps)
        finally:
            sys.setprofile(before)
        return Counter(CALLS)

    return per_step(count)


def calls_in_worker(venv, call):
    """The same in the first worker."""

    def count(steps):
        call("start_meter")
        advance(venv, steps)
        return call("stop_meter")[0][0]

    return per_step(count)


def matching(pattern, calls):
    return {name: cost for name, cost in calls.items() if pattern.match(name)}


CASES = {
    "nothing": {},
    "numbers": {"info": {"x_velocity": 1.5, "count": 3, "alive": True}},
    "ends": {"horizon": 7},
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_pickles_nothing_and_asks_nothing_of_the_system(build, case):
    """Infos of numbers and the ends of episodes travel in shared memory: no pickle, no message, on either side."""
    venv, call = build(**CASES[case])
    for calls in (calls_in_program(venv), calls_in_worker(venv, call)):
        assert calls, "nothing was counted"
        assert matching(PICKLES, calls) == {}
        assert matching(SYSTEM, calls) == {}


def test_what_does_not_fit_into_a_column_is_seen_by_these_counts(build):
    """The counts work: a text in the infos is a pickle for each worker, and a message where it is long."""
    venv, call = build(info={"text": "?" * 100_000})
    worker, program = calls_in_worker(venv, call), calls_in_program(venv)
    assert sum(matching(PICKLES, worker).values()) >= 1
    assert sum(matching(PICKLES, program).values()) >= WORKERS
    assert matching(SYSTEM, worker)
    assert matching(SYSTEM, program)


def test_a_step_rings_once_for_each_worker_and_each_rings_twice(build):
    """For a worker its command; for its reply its own bell and the doorbell of all."""
    venv, call = build()

    def count(steps):
        start = RINGS["ring"]
        advance(venv, steps)
        own = RINGS["ring"] - start
        rings = [call("stop_meter")[0][1]]
        advance(venv, steps)
        # The reply to the call is rung for after it.
        rings.append(call("stop_meter")[0][1])
        return Counter(program=own, worker=rings[1] - rings[0])

    assert per_step(count) == {"program": WORKERS, "worker": 2}


def test_a_step_copies_the_observations_once(build):
    """They are written in place by the workers, and copied when they are handed out."""
    venv, _ = build()
    nbytes = N * 100 * 100 * 4
    actions = np.ones(N, np.int64)
    tracemalloc.start()
    try:
        grown = []
        for _ in range(STEPS):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            result = venv.step(actions)
            grown.append(tracemalloc.get_traced_memory()[1] - before)
            del result
    finally:
        tracemalloc.stop()
    assert {used // nbytes for used in grown} == {1}


def test_a_worker_copies_its_actions_only(build):
    """Environments may keep their actions, so that each batch of them is copied; observations are not."""
    venv, call = build()
    copies = {name: cost for name, cost in calls_in_worker(venv, call).items() if name.endswith(".copy")}
    assert copies == {"ndarray.copy": 1}


PROGRAM = """
import os, sys
from test_costs import N, STEPS, MeteredEnv, advance
from fastvec import SharedMemVectorEnv

if __name__ == "__main__":
    with SharedMemVectorEnv([MeteredEnv] * N, num_workers=2, start_method="fork") as venv:
        venv.reset()
        advance(venv, STEPS)
        os.path.exists("/steady state begins")
        advance(venv, 10 * STEPS)
        os.path.exists("/steady state ends")
"""


def test_the_kernel_sees_wake_ups_and_nothing_else(tmp_path):
    """Traced: between two steps neither side reads, writes, sends, receives, maps or opens anything."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    calls = "trace=read,write,sendto,sendmsg,recvfrom,recvmsg,openat,mmap,munmap,stat,newfstatat,statx,clone,fork"
    command = ["strace", "-f", "-qq", "-e", calls, "-e", "signal=none", "-o", str(trace), sys.executable, "-c", PROGRAM]
    environ = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**25)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=170)
    if "ptrace" in done.stderr and done.returncode:
        pytest.skip("tracing is not allowed here")
    assert done.returncode == 0, done.stderr
    text = trace.read_text()
    steady = text.partition("/steady state begins")[2].partition("/steady state ends")[0].splitlines()[1:-1]
    seen = Counter(match[1] for line in steady if (match := re.match(r"\d+\s+(\w+)\(", line)))
    # Now and then the allocator or the collector of garbage asks for memory; each step would be 200 times.
    assert sum(seen.values()) < STEPS, seen
