"""Workers that are followed by new ones between episodes: nothing of it is to be seen in the data."""

from __future__ import annotations

import collections
import enum
import functools
import logging
import os
import random
import signal
import threading
import time

import gymnasium
import numpy as np
import psutil
import pytest
from engines import START_METHODS, gone, make_engine, reset
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import NormalizeObservation, RecordEpisodeStatistics
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_engine import assert_same
from toys import CountingEnv, FailingOnceEnv, StreamEnv

from fastvec import SharedMemVectorEnv, errors
from fastvec._core.config import AutoresetMode as Mode
from fastvec._core.launch import wait_for_exit
from fastvec._env_access import call_method

MODES = list(AutoresetMode)


def trace(fns, steps, mode=AutoresetMode.SAME_STEP, schedule=(), **options):
    """What comes back from some steps, and the processes that the environments were in."""
    pids = set()
    with SharedMemVectorEnv(fns, autoreset_mode=mode, **options) as venv:
        found = [venv.reset(seed=3, options={"level": 1})]
        for index in range(steps):
            found.append(venv.step([i % 3 for i in range(len(fns))]))
            ended = found[-1][2] | found[-1][3]
            if mode is AutoresetMode.DISABLED and ended.any():
                found.append(venv.reset(options={"reset_mask": ended}))
            if index in schedule:
                found.append(venv.reset(seed=schedule[index]))
            pids.update(venv.call("pid"))
    return found, pids


@pytest.mark.parametrize("kind", ["box", "text", "dict"])
@pytest.mark.parametrize("mode", MODES)
def test_nothing_of_it_is_seen_in_the_data(mode, kind):
    """Seeds, infos, resets and leaves of every kind go on as in workers that stay."""
    fns = [functools.partial(StreamEnv, kind, i) for i in range(5)]
    schedule = {20: None, 35: 9, 36: None}
    expected, _ = trace(fns, 60, mode, schedule, num_workers=2, start_method="fork")
    found, pids = trace(fns, 60, mode, schedule, num_workers=2, start_method="fork", max_episodes_per_worker=6)
    assert_same(found, expected)
    assert len(pids) > 6
    assert gone(pids)


@pytest.mark.parametrize("method", START_METHODS)
def test_every_start_method_recycles(method):
    """The successors are started as the first workers were."""
    fns = [functools.partial(StreamEnv, "box", i) for i in range(3)]
    expected, _ = trace(fns, 20, num_workers=0)
    found, pids = trace(fns, 20, num_workers=2, start_method=method, max_episodes_per_worker=4)
    assert_same(found, expected)
    assert len(pids) > 2
    assert gone(pids)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_schedule_of_calls_is_the_same_with_and_without(data):
    """Steps, resets of all and of some, calls between and amid steps, dropped steps: as in this process."""
    envs = data.draw(st.integers(1, 5), label="envs")
    mode = data.draw(st.sampled_from(list(Mode)), label="mode")
    kind = data.draw(st.sampled_from(["box", "dict"]), label="kind")
    fns = [functools.partial(StreamEnv, kind, i) for i in range(envs)]
    one = make_engine(fns, num_workers=0, autoreset_mode=mode, reset_options="keep")
    two = make_engine(
        fns,
        num_workers=data.draw(st.integers(1, 3), label="workers"),
        max_episodes_per_worker=data.draw(st.integers(1, 8), label="episodes"),
        autoreset_mode=mode,
        reset_options="keep",
    )
    both = one, two
    try:
        assert_same(reset(one, seed=1, options={"level": 2}), reset(two, seed=1, options={"level": 2}))
        ended = np.zeros(envs, bool)
        for _ in range(data.draw(st.integers(1, 25), label="commands")):
            command = data.draw(st.sampled_from(["step"] * 6 + ["reset", "masked", "drop", "call", "amid"]))
            if command == "reset":
                results = [reset(engine, seed=data.draw(st.none()) or None) for engine in both]
                ended[:] = False
            elif command == "masked" or (mode is Mode.DISABLED and ended.any()):
                mask = ended if mode is Mode.DISABLED and ended.any() else np.arange(envs) % 2 == 0
                for engine in both:
                    engine.send_reset([{} for _ in range(envs)], mask.copy())
                results = [engine.recv_reset() for engine in both]
                ended &= ~mask
            elif command == "call":
                ids = list(range(envs))[::-1]
                results = [engine.call("observe", call_method, "observe", env_ids=ids) for engine in both]
            else:
                for engine in both:
                    engine.send(np.zeros(envs, np.int64))
                calls = []
                if command == "amid":
                    calls = [engine.call("observe", call_method, "observe", env_ids=[0]) for engine in both]
                results = [engine.recv() for engine in both]
                if calls:
                    assert_same(*calls)
                ended |= np.frombuffer(results[0].flags, np.uint8) & 3 != 0
            assert_same(*results)
    finally:
        one.close()
        two.close()


def peek(env):
    return env.left


@pytest.mark.parametrize("mode", MODES)
def test_calls_see_the_environment_whose_observation_is_shown(mode):
    """An environment goes over when it is reset, not before."""
    fns = [functools.partial(StreamEnv, "box", i) for i in range(4)]
    found = []
    for options in ({}, {"max_episodes_per_worker": 2}):
        engine = make_engine(fns, autoreset_mode=Mode(mode.value), **options)
        reset(engine, seed=1)
        left = []
        for _ in range(30):
            engine.send(np.zeros(4, np.int64))
            ended = np.frombuffer(engine.recv().flags, np.uint8) & 3 != 0
            left.append(engine.call("peek", peek, env_ids=range(4)))
            if mode is AutoresetMode.DISABLED and ended.any():
                engine.send_reset([{}] * 4, ended)
                engine.recv_reset()
        engine.close()
        found.append(left)
    assert found[0] == found[1]


def wrapped(env_id):
    return RecordEpisodeStatistics(NormalizeObservation(StreamEnv("box", env_id)))


def test_wrappers_go_on_with_their_counts_and_means():
    """The plain attributes of wrappers go over with the environment."""
    fns = [functools.partial(wrapped, i) for i in range(4)]
    found, means = [], []
    for options in ({}, {"max_episodes_per_worker": 3}):
        with SharedMemVectorEnv(fns, num_workers=2, start_method="fork", **options) as venv:
            steps = [venv.reset(seed=1)[0]]
            for _ in range(30):
                steps.append(venv.step([0] * 4)[:4])
            found.append(steps)
            means.append((venv.get_attr("episode_count"), [float(rms.count) for rms in venv.get_attr("obs_rms")]))
    assert_same(*found)
    assert means[0] == means[1]
    assert sum(means[0][0]) > 20


class ThreeSteps(StreamEnv):
    """Episodes of three steps; writes in place into an array that others may look at."""

    def __init__(self):
        super().__init__()
        self.mask = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.left = 3
        return self.observe(), {}

    def step(self, action):
        self.left -= 1
        self.mask[:] = self.np_random.random()
        return self.observe(), 0.0, self.left == 0, False, {}


class Layer(gymnasium.Wrapper):
    """Adds to the rewards what ``self.add()`` says."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + self.add(), *rest


class Looking(Layer):
    """At an array of its environment, and at a view of one of its own."""

    def __init__(self, env):
        super().__init__(env)
        self.mask = env.unwrapped.mask
        self.own = np.zeros(3)
        self.last = self.own[-1:]

    def add(self):
        self.own[-1] += 1
        return float(self.mask[0]) + float(self.last[0])


class Drawing(Layer):
    """From generators of every kind."""

    def __init__(self, env):
        super().__init__(env)
        self.one, self.two = random.Random(1), np.random.RandomState(1)
        self.three, self.action_space = np.random.default_rng(1), spaces.Discrete(1000)
        self.action_space.seed(3)

    def add(self):
        return self.one.random() + self.two.rand() + self.three.random() + int(self.action_space.sample())


class Gear(enum.IntEnum):
    A, B = 1, 2


Point = collections.namedtuple("Point", "x y")


class Named(Layer):
    """Has data whose classes a script has defined."""

    def __init__(self, env):
        super().__init__(env)
        self.gear, self.point, self.itself = Gear.A, Point(1, 2), []
        self.itself.append(self.itself)

    def add(self):
        self.gear, self.point = Gear.B if self.gear is Gear.A else Gear.A, Point(self.point.y, self.point.x + 1)
        return float(self.gear + self.point.x)


class Outer(gymnasium.Env):
    """Has its environment under another name."""

    def __init__(self):
        self.simulator = ThreeSteps()
        self.observation_space, self.action_space = self.simulator.observation_space, self.simulator.action_space

    def reset(self, *, seed=None, options=None):
        return self.simulator.reset(seed=seed)

    def step(self, action):
        return self.simulator.step(action)

    def pid(self):
        return os.getpid()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("kind", [Looking, Drawing, Named, Outer])
def test_layers_of_every_kind_go_on(kind, method):
    """Whatever their attributes are, refer to or draw from."""

    def make():
        return Outer() if kind is Outer else kind(ThreeSteps())

    expected, _ = trace([make] * 2, 15, num_workers=0)
    found, pids = trace([make] * 2, 15, num_workers=1, start_method=method, max_episodes_per_worker=2)
    assert_same(found, expected)
    assert len(pids) > 2


def test_a_memory_map_stays_a_memory_map(tmp_path):
    """Nothing that is written into it is lost."""
    path = tmp_path / "log"
    np.zeros(100).tofile(path)

    class Logging(Layer):
        def __init__(self, env):
            super().__init__(env)
            self.log, self.count = np.memmap(path, np.float64, "r+"), 0

        def add(self):
            self.log[self.count] = self.count = self.count + 1
            return 0.0

    _, pids = trace([lambda: Logging(ThreeSteps())], 20, num_workers=1, start_method="fork", max_episodes_per_worker=1)
    assert len(pids) > 3
    assert np.fromfile(path).tolist()[:20] == list(range(1, 21))


def test_what_cannot_go_over_begins_anew_and_is_told_of(capfd):
    """A generator that cannot be pickled; an environment that is made late. The training goes on."""

    class Odd:
        def __init__(self):
            self.lock = threading.Lock()

        def random(self):
            return 0.5

    class OddEnv(ThreeSteps):
        def reset(self, *, seed=None, options=None):
            self._np_random = Odd()
            self.left = 3
            return np.zeros(2, np.float32), {}

        def observe(self):
            return np.zeros(2, np.float32)

    class Late(Outer):
        def __init__(self):
            super().__init__()
            self.simulator = None

        def reset(self, *, seed=None, options=None):
            self.simulator = self.simulator or ThreeSteps()
            return self.simulator.reset(seed=seed)

    for cls, text in (
        (OddEnv, "_np_random of an environment cannot be pickled"),
        (Late, "has nothing at '.simulator' yet"),
    ):
        _, pids = trace([cls], 8, num_workers=1, start_method="forkserver", max_episodes_per_worker=1)
        assert len(pids) > 2
        assert text in capfd.readouterr().err


class Unequal(StreamEnv):
    """Its factory seeds the global generators; episodes of 2 steps, or of 9."""

    def __init__(self, env_id):
        super().__init__("box", env_id)
        np.random.seed(3)
        random.seed(3)

    def observe(self):
        return np.array([np.random.random(), random.random()], np.float32)

    def reset(self, *, seed=None, options=None):
        self.left = 9 if self.env_id else 2
        return self.observe(), {}

    def step(self, action):
        self.left -= 1
        return self.observe(), 0.0, self.left == 0, False, {}


def test_global_generators_do_not_repeat_themselves_amid_a_change():
    """While two workers share environments, neither draws what the other has drawn."""
    fns = [functools.partial(Unequal, i) for i in range(2)]
    with SharedMemVectorEnv(fns, autoreset_mode="SameStep", num_workers=1, max_episodes_per_worker=1) as venv:
        drawn = [*venv.reset()[0][:, 0]]
        for _ in range(40):
            observations, *_, infos = venv.step([0, 0])
            drawn += [*observations[:, 0]]
            drawn += [final[0] for final in infos.get("final_obs", []) if final is not None]
    assert len(set(drawn)) == len(drawn)


class GlobalEnv(StreamEnv):
    """Draws from the generators of its process, which its resets seed."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
        super().reset(seed=seed)
        return self.observe(), {}

    def observe(self):
        return np.array([random.random(), np.random.random()], np.float32)


def test_global_generators_go_on_where_a_worker_has_one_environment():
    """As far as that is possible: environments that share them see each other's draws."""
    fns = [functools.partial(GlobalEnv, "box", i) for i in range(2)]
    expected, _ = trace(fns, 20, in_series=1, start_method="fork")
    found, pids = trace(fns, 20, in_series=1, start_method="fork", max_episodes_per_worker=2)
    assert_same(found, expected)
    assert len(pids) > 4


LEAK = 4 << 20


class LeakyEnv(StreamEnv):
    """Keeps 4 MB more with every episode."""

    kept: list[bytes] = []

    def reset(self, *, seed=None, options=None):
        self.kept.append(os.urandom(LEAK))
        return super().reset(seed=seed, options=options)

    def rss(self):
        return psutil.Process().memory_info().rss


def test_a_worker_that_leaks_stays_small(monkeypatch):
    """Its memory is looked at; once it is too large, it is followed by another, and the data are the same."""
    monkeypatch.setattr("fastvec._core.recycling._INTERVAL", 0.0)
    fns = [functools.partial(LeakyEnv, "box", i) for i in range(2)]
    expected, _ = trace(fns, 60, num_workers=0)
    LeakyEnv.kept.clear()
    most, pids = [], set()
    # Not forked from this process, whose size would be theirs.
    options = {"num_workers": 1, "start_method": "forkserver"}
    with SharedMemVectorEnv(fns, **options) as venv:
        limit = max(venv.call("rss")) + 10 * LEAK
    options["max_worker_rss"] = limit
    with SharedMemVectorEnv(fns, autoreset_mode=AutoresetMode.SAME_STEP, **options) as venv:
        found = [venv.reset(seed=3, options={"level": 1})]
        for _ in range(60):
            found.append(venv.step([0, 1]))
            most.append(max(venv.call("rss")))
            pids.update(venv.call("pid"))
    assert_same(found, expected)
    assert len(pids) > 1
    # Episodes that are under way when the limit is reached are played to their end.
    assert max(most) < limit + 4 * LEAK


def test_a_limit_below_what_a_worker_takes_at_first_is_told_of_once(caplog, monkeypatch):
    """It works all the same."""
    monkeypatch.setattr("fastvec._core.recycling._INTERVAL", 0.0)
    fns = [functools.partial(StreamEnv, "box", i) for i in range(2)]
    expected, _ = trace(fns, 12, num_workers=0)
    found, pids = trace(fns, 12, num_workers=1, start_method="fork", max_worker_rss=1 << 20)
    assert_same(found, expected)
    assert len(pids) > 2
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "in their first episodes, more than max_worker_rss=1048576" in caplog.text


class OnlyOnceEnv(StreamEnv):
    """Its constructor works in the first process only."""

    def __init__(self, first, kind, env_id):
        if os.path.exists(first):
            raise RuntimeError("no more licences")
        super().__init__(kind, env_id)


def test_a_successor_that_cannot_be_started_changes_nothing(tmp_path, caplog):
    """The worker goes on; a line of the log says why."""
    flag = str(tmp_path / "first")
    engine = make_engine([functools.partial(OnlyOnceEnv, flag, "box", 0)], num_workers=1, max_episodes_per_worker=2)
    serial = make_engine([functools.partial(StreamEnv, "box", 0)], num_workers=0)
    (pid,) = engine.call("pid", call_method, "pid", env_ids=[0])
    open(flag, "w").close()
    assert_same(reset(engine, seed=1), reset(serial, seed=1))
    for _ in range(20):
        for one in (engine, serial):
            one.send(np.zeros(1, np.int64))
        assert_same(engine.recv(), serial.recv())
    assert engine.call("pid", call_method, "pid", env_ids=[0]) == [pid]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "worker 0 goes on, as another in its place could not be started" in caplog.text
    assert "no more licences" in caplog.text
    engine.close()


def amid_a_change(**options):
    """An engine whose only worker has left one of two environments; the process of each."""
    horizons = (2, 50)
    fns = [functools.partial(FailingOnceEnv, i, "", "", "", horizon=horizons[i]) for i in range(2)]
    engine = make_engine(fns, num_workers=1, max_episodes_per_worker=1, **options)
    reset(engine)
    for _ in range(3):
        engine.send(np.zeros(2, np.int64))
        result = engine.recv()
    assert result.observations.tolist() == [[0, 0, 1], [1, 0, 3]]
    (worker,), (leaving,) = engine._pool.workers, engine._pool.leaving.values()
    return engine, worker.process.pid, leaving.process.pid


@pytest.mark.parametrize("who", ["new", "old"])
def test_the_death_of_either_amid_a_change_is_reported(who):
    """Whichever of two that share environments dies: the error, and nothing is left."""
    engine, *pids = amid_a_change()
    os.kill(pids[who == "old"], signal.SIGKILL)
    engine.send(np.zeros(2, np.int64))
    with pytest.raises(errors.WorkerDiedError, match=r"worker 0 .* killed by SIGKILL"):
        engine.recv()
    engine.close()
    assert gone(pids)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("who", ["new", "old"])
def test_the_loss_of_either_amid_a_change_is_survived_on_request(who, how):
    """Both are replaced by one, whose environments begin anew; what the other has said of the step counts no more."""
    engine, *pids = amid_a_change(on_failure="restart")
    os.kill(pids[who == "old"], how)
    engine.send(np.zeros(2, np.int64))
    result = engine.recv(timeout=0.5)
    assert list(result.flags) == [2, 2]
    assert {i: final.tolist() for i, final in result.finals.items()} == {0: [0, 0, 1], 1: [1, 0, 3]}
    assert result.observations.tolist() == [[0, 0, 0], [1, 0, 0]]
    assert gone(pids)
    engine.send(np.zeros(2, np.int64))
    assert engine.recv().rewards.tolist() == [1, 1]
    engine.close()


class StuckEnv(CountingEnv):
    """Its second process never ends a reset."""

    def __init__(self, flag, env_id):
        super().__init__(env_id, horizon=1)
        self.stuck = os.path.exists(flag)
        open(flag, "w").close()

    def reset(self, **options):
        if self.stuck:
            time.sleep(600)
        return super().reset(**options)


def test_a_successor_that_does_not_reset_is_a_step_that_takes_too_long(tmp_path):
    """It has the time that a step has, in which the reset belongs; then that is said, and on request survived."""
    for on_failure, text in (
        ("raise", "step did not finish within 0.5 s"),
        ("restart", "reset did not finish within 0.6 s"),
    ):
        fns = [functools.partial(StuckEnv, str(tmp_path / on_failure), 0)]
        limits = {"max_restarts": 1, "step_timeout": 0.5, "reset_timeout": 0.6, "close_timeout": 0.2}
        engine = make_engine(fns, num_workers=1, max_episodes_per_worker=1, on_failure=on_failure, **limits)
        reset(engine)
        engine.send(np.zeros(1, np.int64))
        with pytest.raises(errors.WorkerTimeoutError, match=text):
            engine.recv()
        if on_failure == "raise":  # as ever, it can be waited for again
            with pytest.raises(errors.WorkerTimeoutError, match=text):
                engine.recv()
        else:
            with pytest.raises(errors.BrokenError, match="did not finish"):
                engine.send(np.zeros(1, np.int64))
        engine.close()


class SlowToReset(CountingEnv):
    """Takes its time for every reset but the first one of its first process."""

    def __init__(self, flag, seconds):
        super().__init__(0, horizon=2)
        self.seconds = seconds if os.path.exists(flag) else 0.0
        open(flag, "w").close()

    def reset(self, **options):
        time.sleep(self.seconds)
        return super().reset(**options)


@pytest.mark.parametrize("how", ["timeout", "interrupt"])
def test_a_wait_for_a_change_of_hands_can_be_gone_on_with(tmp_path, how):
    """After a timeout or Ctrl-C the step is still pending, as it is without a change."""
    limit = {"step_timeout": 0.3} if how == "timeout" else {}
    fns = [functools.partial(SlowToReset, str(tmp_path / "flag"), 1.0)]
    engine = make_engine(fns, num_workers=1, max_episodes_per_worker=1, **limit)
    reset(engine)
    results = []
    for _ in range(3):
        engine.send(np.zeros(1, np.int64))
        if len(results) == 1 and how == "interrupt":
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        if len(results) == 1:
            with pytest.raises(KeyboardInterrupt if how == "interrupt" else errors.WorkerTimeoutError):
                engine.recv()
            result = engine.recv(timeout=30)
        else:
            result = engine.recv()
        results.append((result.observations.tolist(), result.rewards.tolist(), list(result.flags)))
    assert results == [([[0, 0, 1]], [1], [0]), ([[0, 0, 0]], [2], [10]), ([[0, 0, 1]], [1], [0])]
    engine.close()


def test_a_successor_has_a_time_of_its_own_to_start(tmp_path):
    """That its constructor takes longer than a reset may take is no reason to give up a reset."""

    class SlowToBuild(CountingEnv):
        def __init__(self):
            super().__init__(0, horizon=1)
            time.sleep(1.0)

    engine = make_engine([SlowToBuild], num_workers=1, max_episodes_per_worker=1, reset_timeout=0.8, step_timeout=0.8)
    for _ in range(2):
        reset(engine)
        engine.send(np.zeros(1, np.int64))
        assert engine.recv().rewards.tolist() == [1]
    engine.close()


def test_a_new_fork_server_starts_later_workers_where_the_first_has_died():
    """For successors and for replacements."""
    fns = [functools.partial(CountingEnv, i, horizon=2) for i in range(2)]
    for options in ({"max_episodes_per_worker": 1}, {"on_failure": "restart"}):
        engine = make_engine(fns, num_workers=1, start_method="forkserver", **options)
        reset(engine)
        pid = engine._pool.workers[0].process.pid
        server = engine._pool._starter._server._process
        os.kill(server.pid, signal.SIGKILL)
        wait_for_exit([server], 10)
        if "on_failure" in options:
            os.kill(pid, signal.SIGKILL)
        for _ in range(3):
            engine.send(np.zeros(2, np.int64))
            engine.recv()
        assert engine._pool.workers[0].process.pid != pid
        engine.close()


def test_closing_in_a_signal_handler_while_a_successor_starts(tmp_path):
    """It ends the wait, and says what it says anywhere."""

    class SlowToBuild(CountingEnv):
        def __init__(self, flag):
            super().__init__(0, horizon=1)
            if os.path.exists(flag):
                time.sleep(30.0)
            open(flag, "w").close()

    engine = make_engine(
        [functools.partial(SlowToBuild, str(tmp_path / "flag"))],
        num_workers=1,
        max_episodes_per_worker=1,
        close_timeout=0.5,
    )
    reset(engine)
    signal.signal(signal.SIGALRM, lambda *_: engine.close())
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with pytest.raises(errors.ClosedError):
        engine.send(np.zeros(1, np.int64))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    engine.close()


def test_closing_amid_a_change_leaves_nothing():
    """Both processes are ended."""
    engine, *pids = amid_a_change()
    engine.close()
    assert gone(pids)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_episodes_per_worker": 0}, "max_episodes_per_worker must be at least 1, got 0"),
        ({"max_episodes_per_worker": 2.5}, "max_episodes_per_worker must be an integer, got 2.5 of type float"),
        ({"max_worker_rss": -1}, "max_worker_rss must be a number of bytes, such as 2e9 for two gigabytes, got -1"),
        (
            {"max_worker_rss": "1GB"},
            "max_worker_rss must be a number of bytes, such as 2e9 .* got '1GB'",
        ),
        ({"max_episodes_per_worker": 5, "num_workers": 0}, "max_episodes_per_worker=5 needs workers"),
        ({"max_worker_rss": 1 << 30, "num_workers": 0}, "max_worker_rss=1073741824 needs workers"),
    ],
)
def test_options_that_make_no_sense(options, text):
    """They are refused before anything is started."""
    with pytest.raises(errors.ConfigError, match=text):
        make_engine([StreamEnv], **options)
