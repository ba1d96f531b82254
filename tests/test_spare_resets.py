"""``spare_resets``: environments that are reset ahead, against an oracle that knows the rule and not the code."""

from __future__ import annotations

import collections
import contextlib
import csv
import functools
import importlib
import itertools
import os
import signal
import time

import gymnasium
import numpy as np
import pytest
from engines import START_METHODS, eventually, gone, make_engine, reset
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import CountingEnv, FaultyEnv, StreamEnv

from fastvec import SharedMemVectorEnv, errors
from fastvec._core.config import AutoresetMode
from fastvec._core.layout import StepFlag
from fastvec._core.splits import split_engine
from fastvec._env_access import get_attr, set_attr

WORKERS = (0, 1, 2)
MODES = (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)


class UnevenEnv(StreamEnv):
    """A :class:`StreamEnv` whose resets and steps take random times, of a generator that nothing else depends on."""

    level = left = 0

    def __init__(self, env_id, kind="box", pause=0.0):
        super().__init__(kind, env_id)
        self.pause, self.clock = pause, np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        time.sleep(self.pause * self.clock.random())
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "level": self.level}

    def step(self, action):
        time.sleep(self.pause * self.clock.random() / 4)
        return super().step(action)


class Slice:
    """The rule for one worker, as its documentation has it: a queue of spares, each reset when its turn comes."""

    def __init__(self, env_fns, count, mode):
        self.envs = [env_fn() for env_fn in env_fns]
        self.queue = collections.deque((env_fns[i % len(env_fns)](), None) for i in range(count))
        self.mode, self.ended = mode, set()

    def reset(self, seeds):
        for place, (env, _) in enumerate(list(self.queue)):
            seed = seeds[place % len(self.envs)]
            if seed is not None:
                seed = int(np.random.SeedSequence(seed, spawn_key=(place,)).generate_state(1)[0])
            self.queue[place] = env, seed
        self.ended.clear()
        return [env.reset(seed=seed) for env, seed in zip(self.envs, seeds, strict=True)]

    def next_episode(self, row):
        env, seed = self.queue.popleft()
        self.queue.append((self.envs[row], None))
        self.envs[row] = env
        return env.reset(seed=seed)

    def step(self, action):
        """Observation, reward, whether it ended, info, and what came beside: the last observation, the next info."""
        for row in range(len(self.envs)):
            if row in self.ended:
                self.ended.discard(row)
                observation, info = self.next_episode(row)
                yield observation, 0.0, False, info, None, {}
                continue
            observation, reward, terminated, truncated, info = self.envs[row].step(action)
            final, first_info, ended = None, {}, terminated or truncated
            if ended and self.mode is AutoresetMode.SAME_STEP:
                final = observation
                observation, first_info = self.next_episode(row)
            elif ended:
                self.ended.add(row)
            yield observation, reward, ended, info, final, first_info


def slices(n, workers):
    base, extra = divmod(n, max(workers, 1))
    bounds = [worker * base + min(worker, extra) for worker in range(max(workers, 1) + 1)]
    return [range(low, high) for low, high in itertools.pairwise(bounds)]


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return np.array_equal(one, other)


def row_of(observations, row):
    return (
        {key: value[row] for key, value in observations.items()}
        if isinstance(observations, dict)
        else observations[row]
    )


def step(engine, action=0):
    engine.send([action] * engine.num_envs)
    return engine.recv()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_data_follow_the_rule_whenever_there_was_time(data):
    """Seeds, order of turns, infos, last observations: as the oracle has them, for every split, whatever it takes."""
    n, workers = data.draw(st.integers(1, 6)), data.draw(st.sampled_from((0, 1, 2, 3)))
    count, mode = data.draw(st.integers(1, 4)), data.draw(st.sampled_from(MODES))
    kind, pause = data.draw(st.sampled_from(["box", "text", "dict"])), data.draw(st.sampled_from([0.0, 0.0, 0.002]))
    fns = [functools.partial(UnevenEnv, i, kind, pause) for i in range(n)]
    engine = make_engine(fns, num_workers=workers, spare_resets=count, autoreset_mode=mode)
    oracles = [
        Slice([functools.partial(UnevenEnv, i, kind) for i in ids], count, mode) for ids in slices(n, min(workers, n))
    ]
    try:
        for _ in range(data.draw(st.integers(1, 3))):
            seed = data.draw(st.integers(0, 10**6))
            result = reset(engine, seed)
            ids = slices(n, min(workers, n))
            first = [
                one for oracle, its in zip(oracles, ids, strict=True) for one in oracle.reset([seed + i for i in its])
            ]
            for row, (observation, info) in enumerate(first):
                assert equal(row_of(result.observations, row), observation)
                assert result.infos[row] == info
            for _ in range(data.draw(st.integers(0, 25))):
                result = step(engine)
                expected = [one for oracle in oracles for one in oracle.step(0)]
                for row, (observation, reward, ended, info, final, first_info) in enumerate(expected):
                    assert equal(row_of(result.observations, row), observation)
                    assert result.rewards[row] == reward
                    assert bool(result.flags[row] & (StepFlag.TERMINATED | StepFlag.TRUNCATED)) == ended
                    assert result.infos[row] == info
                    assert (row in result.finals) == (final is not None)
                    assert final is None or equal(result.finals[row], final)
                    assert result.reset_infos.get(row, {}) == first_info
                if data.draw(st.integers(0, 9)) == 0:
                    time.sleep(0.003)
    finally:
        engine.close()


class PacedEnv(CountingEnv):
    """Counts its resets in a file's name, so that it shows when they were made."""

    def __init__(self, env_id, folder, horizon=3, pause=0.0):
        super().__init__(env_id, horizon)
        self.folder, self.pause = folder, pause
        (folder / f"made-{env_id}-{id(self)}").touch()

    def reset(self, *, seed=None, options=None):
        time.sleep(self.pause)
        result = super().reset(seed=seed, options=options)
        (self.folder / f"reset-{self.env_id}-{id(self)}-{len(self.reset_calls)}").touch()
        return result

    def close(self):
        (self.folder / f"closed-{self.env_id}-{id(self)}").touch()


def events(folder, kind):
    return len(list(folder.glob(f"{kind}-*")))


@pytest.mark.parametrize("workers", WORKERS)
def test_each_worker_has_its_spares_and_closes_them(tmp_path, workers):
    """So many more environments a worker, from its own factories in turn, reset with the others, closed in the end."""
    fns = [functools.partial(PacedEnv, i, tmp_path) for i in range(4)]
    engine = make_engine(fns, num_workers=workers, spare_resets=3)
    made = 4 + 3 * max(workers, 1)
    assert events(tmp_path, "made") == made
    assert events(tmp_path, "reset") == 0
    reset(engine, 1)
    assert events(tmp_path, "reset") == made
    engine.close()
    assert eventually(lambda: events(tmp_path, "closed") == made)


def test_spares_are_reset_while_the_program_does_something_else(tmp_path):
    """After a step that has used spares up, all are ready again without a further command."""
    fns = [functools.partial(PacedEnv, i, tmp_path, pause=0.01) for i in range(2)]
    engine = make_engine(fns, num_workers=1, spare_resets=2)
    try:
        reset(engine, 1)
        for _ in range(3):
            step(engine)
        assert eventually(lambda: events(tmp_path, "reset") == 6)
    finally:
        engine.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_when_there_was_no_time_all_are_reset_when_the_first_is_wanted(tmp_path, workers):
    """In the step that wants the first one, also in this process, where nobody resets anything meanwhile."""
    fns = [functools.partial(PacedEnv, i, tmp_path, horizon=1) for i in range(max(workers, 1))]
    engine = make_engine(fns, num_workers=workers, spare_resets=2)
    try:
        reset(engine, 1)
        for count in range(1, 7):
            observations = step(engine).observations
            assert observations[:, 2].tolist() == [0] * engine.num_envs
            # Of three objects that take turns each serves every third episode.
            assert observations[:, 1].tolist() == [count // 3] * engine.num_envs
    finally:
        engine.close()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("mode", MODES)
def test_set_attr_holds_for_whoever_serves_an_index(workers, mode):
    """A value for all reaches spares too, which are reset once more after it; and the data do not depend on when."""
    runs = []
    for pause in (0.0, 0.02):
        engine = make_engine(
            [functools.partial(UnevenEnv, i) for i in range(4)],
            num_workers=workers,
            spare_resets=3,
            autoreset_mode=mode,
        )
        try:
            reset(engine, 5)
            run = [step(engine).observations for _ in range(4)]
            time.sleep(pause)
            engine.call("set_attr", set_attr, "level", 7, env_ids=range(4), lasting=True)
            for _ in range(12):
                result = step(engine)
                run.append(result.observations)
                levels = [info["level"] for info in (*result.reset_infos.values(), *result.infos) if "level" in info]
                assert set(levels) <= {7}
            assert engine.call("get_attr", get_attr, "level", env_ids=range(4)) == [7] * 4
            runs.append(run)
        finally:
            engine.close()
    assert np.array_equal(*runs)


@pytest.mark.parametrize("workers", WORKERS)
def test_set_attr_of_some_is_refused(workers):
    """What is set for one index would go elsewhere with its object; the environments are usable afterwards."""
    with contextlib.closing(
        SharedMemVectorEnv(
            [functools.partial(UnevenEnv, i) for i in range(2)],
            num_workers=workers,
            start_method="fork",
            spare_resets=1,
        )
    ) as venv:
        venv.reset(seed=1)
        with pytest.raises(
            errors.ConfigError, match="spare_resets=1 set_attr must give all environments the same value"
        ):
            venv.set_attr("level", [1, 2])
        venv.set_attr("level", 3)
        assert venv.get_attr("level") == (3, 3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"spare_resets": -1}, "spare_resets must be at least 0, got -1"),
        ({"spare_resets": 1.5}, "spare_resets must be an integer"),
        ({"spare_resets": 1, "reset_options": "keep"}, "cannot be combined with reset_options"),
        ({"spare_resets": 1, "max_episodes_per_worker": 9}, "cannot be combined with max_episodes_per_worker"),
        ({"spare_resets": 1, "max_worker_rss": 1e9}, "cannot be combined with max_worker_rss"),
        ({"spare_resets": 1, "autoreset_mode": AutoresetMode.DISABLED}, "autoreset_mode='Disabled' there are none"),
    ],
)
def test_what_does_not_go_together_is_said(options, text):
    """Before anything has started."""
    with pytest.raises(errors.ConfigError, match=text):
        make_engine([functools.partial(CountingEnv, 0)], **options)


@pytest.mark.parametrize("workers", WORKERS)
def test_splits_have_no_spares(workers):
    """A spare cannot serve two splits: it is said, and the environments are usable afterwards."""
    engine = make_engine([functools.partial(CountingEnv, i) for i in range(4)], num_workers=workers, spare_resets=1)
    reset(engine, 1)
    with pytest.raises(errors.ConfigError, match=r"split\(\) and spare_resets do not go together"):
        split_engine(engine, 2)
    step(engine)
    engine.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_factory_that_returns_one_object_twice_is_found_out(workers):
    """A spare must be another environment than the one that its factory has made before."""
    one = CountingEnv(0)
    with pytest.raises(errors.DuplicateEnvError, match="env 0 and env 0 returned the same instance"):
        make_engine([lambda: one], num_workers=workers, spare_resets=1)


class FailingSpareEnv(FaultyEnv):
    """The one made for index 1 fails in its second reset, in one way."""

    def reset(self, *, seed=None, options=None):
        if self.env_id == len(self.reset_calls) == 1:
            self.where = "reset"
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_spare_raises_is_raised_by_the_step_that_wants_it(workers):
    """With the index that it was to serve, here 0; until then nobody is disturbed."""
    fns = [functools.partial(FailingSpareEnv, i, "", "raise", horizon=5) for i in range(2)]
    engine = make_engine(fns, num_workers=workers, spare_resets=1)
    reset(engine, 1)
    for _ in range(9):
        step(engine)
    with pytest.raises(KeyError, match="bad torque") as caught:
        step(engine)
    assert "env 0 (" in str(caught.value.__cause__)
    engine.close()


def test_a_spare_that_dies_meanwhile_is_told_by_the_next_command():
    """With the worker, and the environment by which the spare is named."""
    fns = [functools.partial(FailingSpareEnv, i, "", "SIGKILL", horizon=2) for i in range(2)]
    engine = make_engine(fns, num_workers=1, spare_resets=1)
    reset(engine, 1)
    (pid,) = engine.call("pid", lambda env: os.getpid(), env_ids=[0])
    step(engine)
    step(engine)
    assert eventually(lambda: gone([pid]))
    with pytest.raises(errors.WorkerDiedError, match="of env 1: it was killed by SIGKILL"):
        step(engine)
    engine.close()


def test_a_replaced_worker_has_spares_again():
    """After ``on_failure="restart"`` the new worker's environments take turns too."""
    fns = [functools.partial(StreamEnv, "box", i) for i in range(4)]
    engine = make_engine(fns, num_workers=2, spare_resets=2, on_failure="restart")
    try:
        reset(engine, 1)
        for _ in range(10):
            step(engine)
        os.kill(engine.call("pid", StreamEnv.pid, env_ids=[0])[0], signal.SIGKILL)
        infos = step(engine).infos
        assert ["worker_restarted" in info for info in infos] == [True, True, False, False]
        flags = np.zeros(4, int)
        for _ in range(30):
            flags += np.frombuffer(step(engine).flags, np.uint8) != 0
        assert (flags > 3).all()
    finally:
        engine.close()


def test_check_nan_knows_whose_episode_it_was():
    """The seed that is named is the one of the object that failed, and how many episodes ago."""

    class NanEnv(CountingEnv):
        def step(self, action):
            observation, *rest = super().step(action)
            if self.episode == 1:
                observation[1] = np.nan
            return observation, *rest

    engine = make_engine([functools.partial(NanEnv, 0, horizon=2)], num_workers=1, spare_resets=1, check_nan=True)
    reset(engine, 3)
    for _ in range(4):
        step(engine)
    with pytest.raises(errors.NanError, match="step 1 of episode 2 since the seed 3"):
        step(engine)
    engine.close()


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_accounts_of_monitor_stay_with_the_index(tmp_path, start_method, workers):
    """Its file, counts and lists: as many episodes as the learner has seen of that index, whoever served it."""
    pytest.importorskip("stable_baselines3")
    sb3 = importlib.import_module("fastvec.sb3")
    fns = [functools.partial(monitored, i, str(tmp_path / str(i))) for i in range(4)]
    venv = sb3.SharedMemVecEnv(fns, num_workers=workers, start_method=start_method, spare_resets=3)
    seen = [[] for _ in fns]
    try:
        venv.seed(3)
        venv.reset()
        for _ in range(60):
            for env_id, info in enumerate(venv.step([0] * 4)[3]):
                if "episode" in info:
                    seen[env_id].append((info["episode"]["r"], info["episode"]["l"]))
        assert [
            [(round(r, 6), length) for r, length in zip(*both, strict=True)]
            for both in zip(venv.env_method("get_episode_rewards"), venv.env_method("get_episode_lengths"), strict=True)
        ] == seen
        assert venv.env_method("get_total_steps") == [60] * 4
    finally:
        venv.close()
    for env_id in range(4):
        lines = (tmp_path / f"{env_id}.monitor.csv").read_text().splitlines()
        assert lines[0].startswith("#{")
        rows = list(csv.DictReader(lines[1:]))
        assert [(float(row["r"]), int(row["l"])) for row in rows] == seen[env_id]
    assert min(map(len, seen)) > 5


def monitored(env_id, path):
    from stable_baselines3.common.monitor import Monitor

    return Monitor(StreamEnv("box", env_id), path)


@pytest.mark.parametrize("workers", WORKERS)
def test_record_episode_statistics_counts_by_index(workers):
    """Gymnasium's wrapper keeps its count and its queues where they were."""
    fns = [lambda i=i: gymnasium.wrappers.RecordEpisodeStatistics(StreamEnv("box", i)) for i in range(3)]
    with contextlib.closing(SharedMemVectorEnv(fns, num_workers=workers, start_method="fork", spare_resets=2)) as venv:
        venv.reset(seed=2)
        ends = np.zeros(3, int)
        for _ in range(40):
            terminations, truncations = venv.step(np.zeros(3, np.int64))[2:4]
            ends += terminations | truncations
        assert venv.call("episode_count") == tuple(ends)
        assert [len(queue) for queue in venv.call("length_queue")] == ends.tolist()


@pytest.mark.parametrize("workers", WORKERS)
def test_what_rides_along_is_of_the_new_episode(workers):
    """``with_step`` asks the object that took the place, not the one whose episode has ended."""
    engine = make_engine(
        [functools.partial(UnevenEnv, i) for i in range(3)],
        num_workers=workers,
        spare_resets=2,
        with_step=["left"],
    )
    try:
        reset(engine, 1)
        for _ in range(20):
            step(engine)
            known = engine.came_along(["left"], range(3))
            assert min(known) >= 1
            assert known == engine.call("left", get_attr, "left", env_ids=range(3))
    finally:
        engine.close()


def test_the_environments_of_this_process_are_those_that_serve():
    """``envs`` follows the changes."""
    with contextlib.closing(
        SharedMemVectorEnv([functools.partial(CountingEnv, 0, horizon=1)], num_workers=0, spare_resets=1)
    ) as venv:
        venv.reset(seed=1)
        (before,) = venv.envs
        venv.step([0])
        venv.step([0])
        (after,) = venv.envs
        assert after is not before
