"""The first k of n: whoever is ready is handed out, with the values that it would have in step with the others."""

from __future__ import annotations

import functools
import os
import time

import numpy as np
import pytest
from engines import eventually, gone, make_engine, reset
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from test_engine import assert_same
from toys import CountingEnv, FaultyEnv, SampledEnv, SleepyEnv, StreamEnv

from fastvec import SharedMemVectorEnv, errors
from fastvec._core.config import AutoresetMode as Mode
from fastvec._env_access import get_attr

WAYS = {
    "serial": {"num_workers": 0},
    "1 worker": {"num_workers": 1},
    "2 workers": {"num_workers": 2},
    "one each": {"in_series": 1, "num_workers": None},
}
MODES = [Mode.SAME_STEP, Mode.NEXT_STEP]


@pytest.fixture(params=WAYS)
def way(request):
    return {"start_method": "fork", **WAYS[request.param]}


def venv_of(fns, way, **options):
    return SharedMemVectorEnv(fns, **way, **options)


def counting(way, n=5, horizon=None, **options):
    return venv_of([functools.partial(CountingEnv, i, horizon) for i in range(n)], way, **options)


def rows_of(observations, count):
    """The observations of single environments out of a batch."""
    if isinstance(observations, dict):
        parts = {key: rows_of(value, count) for key, value in observations.items()}
        return [{key: part[row] for key, part in parts.items()} for row in range(count)]
    return [observations[row].copy() if observations.dtype != object else observations[row] for row in range(count)]


def records(result, flags, places):
    """What a result says of each environment."""
    observations = rows_of(result.observations, len(result.rewards))
    return [
        (
            observations[place],
            result.rewards[place],
            int(flags[place]),
            result.infos[place],
            result.finals.get(place),
            result.reset_infos.get(place),
        )
        for place in places
    ]


# ---------------------------------------------------------------- the same values


@pytest.mark.parametrize("seed", range(24))
def test_each_environment_goes_its_way_as_in_step_with_the_others(seed):
    """Whoever is sent when, and whatever is called amid it: values are those of ordinary steps."""
    rng = np.random.default_rng(seed)  # not hypothesis: who is ready when is not for it to say again
    envs, steps = int(rng.integers(1, 6)), 10
    mode, kind = MODES[seed % 2], ["box", "dict", "text"][seed % 3]
    way = [{"num_workers": 0}, *({"num_workers": None, "in_series": k} for k in (1, 2, 3))][seed // 6]
    fns = [functools.partial(StreamEnv, kind, i) for i in range(envs)]
    oracle = make_engine(fns, num_workers=0, autoreset_mode=mode)
    engine = make_engine(fns, autoreset_mode=mode, copy=bool(rng.integers(2)), **way)
    try:
        assert_same(reset(engine, seed=3), reset(oracle, seed=3))
        actions = rng.integers(0, 3, (steps, envs))
        expected = []
        for batch in actions:
            oracle.send(batch)
            result = oracle.recv()
            expected.append(records(result, result.flags, range(envs)))
        found = [[] for _ in range(envs)]
        sent = np.zeros(envs, int)
        while (idle := [i for i in range(envs) if sent[i] < steps and i not in engine._sent]) or engine._sent:
            chosen = rng.permutation([i for i in idle if rng.random() < 0.5] or idle[: not engine._sent]).tolist()
            if chosen:
                batch = actions[sent[chosen], chosen]
                engine.send_some(list(batch) if rng.random() < 0.3 else batch, chosen)
                sent[chosen] += 1
            if rng.random() < 0.2:
                engine.call("kind", get_attr, "kind", env_ids=range(envs))
            result = engine.recv_some(int(rng.integers(len(engine._sent))) + 1)
            ids = result.env_ids.tolist()
            for env_id, record in zip(ids, records(result, result.flags, range(len(ids))), strict=True):
                found[env_id].append(record)
        for env_id in range(envs):
            assert_same(found[env_id], [step[env_id] for step in expected])
        # And in step again.
        for one in (oracle, engine):
            one.send(np.zeros(envs, np.int64))
        assert_same(engine.recv(), oracle.recv())
    finally:
        oracle.close()
        engine.close()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_all_at_once_is_a_step_of_gymnasium(mode, way):
    """With min_envs=num_envs a receipt equals SyncVectorEnv's step, infos included, row by row."""
    space, action = spaces.Dict(x=spaces.Box(-1, 1, (2,)), n=spaces.Discrete(4)), spaces.Discrete(3)
    fns = [functools.partial(SampledEnv, space, action, i) for i in range(4)]
    sync = SyncVectorEnv(fns, autoreset_mode=mode)
    with venv_of(fns, way, autoreset_mode=mode) as venv:
        assert_same(venv.reset(seed=1)[0], sync.reset(seed=1)[0])
        for _ in range(12):
            venv.send([0, 1, 2, 0])
            found, expected = venv.recv(min_envs=4), sync.step([0, 1, 2, 0])
            env_ids = found[4].pop("env_ids")
            assert sorted(env_ids.tolist()) == [0, 1, 2, 3]
            for part, other in zip(found[1:4], expected[1:4], strict=True):
                assert_same(part, other[env_ids])
            for key in space.spaces:
                assert_same(found[0][key], expected[0][key][env_ids])
            assert set(found[4]) == set(expected[4])
    sync.close()


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (2,)), spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(0, 1, (2,))), spaces.Text(4)]
)
def test_actions_arrive_as_in_a_step(space, way):
    """Arrays of each dtype, dicts and objects have the types that an ordinary step gives them."""
    fns = [functools.partial(SampledEnv, spaces.Discrete(2), space, i) for i in range(3)]
    batches = [[space.sample() for _ in range(3)] for _ in range(2)]
    if isinstance(space, spaces.Box):
        batches = [np.stack(batches[0]), np.stack(batches[1]).astype(np.float64)]
    one, two = make_engine(fns, num_workers=0), make_engine(fns, **way)
    reset(one, seed=0)
    reset(two, seed=0)
    for batch in batches:
        one.send(batch)
        expected = [info["action"] for info in one.recv().infos]
        two.send_some([batch[2]] if isinstance(batch, list) else batch[2:], [2])
        two.send_some(batch[:2], [0, 1])
        result = two.recv_some(3)
        assert {i: info["action"] for i, info in zip(result.env_ids.tolist(), result.infos, strict=True)} == dict(
            enumerate(expected)
        )
    one.close()
    two.close()


# ---------------------------------------------------------------- who is ready


class GatedEnv(CountingEnv):
    """Its step waits for a file."""

    def __init__(self, env_id, gate):
        super().__init__(env_id)
        self.gate = gate

    def step(self, action):
        if self.gate is not None:
            assert eventually(lambda: os.path.exists(self.gate), 60)
        return super().step(action)


def test_who_is_ready_does_not_wait_for_who_is_not(tmp_path):
    """Env 1 is stuck: the others go on, and it comes when it is free."""
    gate = str(tmp_path / "open")
    fns = [functools.partial(GatedEnv, i, gate if i == 1 else None) for i in range(3)]
    with venv_of(fns, {"in_series": 1, "start_method": "fork"}) as venv:
        venv.reset()
        venv.send([0] * 3)
        seen = []
        while len(seen) < 20:
            env_ids = venv.recv()[4]["env_ids"].tolist()
            seen += env_ids
            venv.send([0] * len(env_ids), env_ids)
        assert set(seen) == {0, 2}
        with pytest.raises(errors.WorkerTimeoutError, match=r"[012] of at least 3 environments are ready.*envs \[.*1"):
            venv.recv(3, timeout=0.05)
        open(gate, "w").close()
        observations, *_, infos = venv.recv(3)
        assert sorted(infos["env_ids"].tolist()) == [0, 1, 2]
        assert observations[infos["env_ids"].tolist().index(1)].tolist() == [1, 0, 1]


class SlowEnv(CountingEnv):
    def __init__(self, env_id, seconds):
        super().__init__(env_id)
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


@pytest.mark.parametrize("in_series", [1, 2])
def test_none_is_starved(in_series):
    """One fast environment among slow ones: whoever has become ready is in the next batch."""
    fns = [functools.partial(SlowEnv, i, 0 if i == 0 else 0.02) for i in range(6)]
    with venv_of(fns, {"in_series": in_series, "start_method": "fork"}) as venv:
        venv.reset()
        venv.send([0] * 6)
        received = np.zeros(6, int)
        while received[0] < 60 or received.min() < 3:
            env_ids = venv.recv()[4]["env_ids"]
            received[env_ids] += 1
            venv.send([0] * len(env_ids), env_ids)
            assert received[0] < 5000
        venv.recv(6)
        # Who is ready is handed out at once: none of the equally slow ones falls behind the others.
        assert received[2:].max() - received[2:].min() <= 0.5 * received[2:].max() + 2


def test_the_oldest_come_first_without_workers():
    """In this process they are stepped when they are received, in the order in which they were sent."""
    with counting({"num_workers": 0}) as venv:
        venv.reset()
        venv.send([0] * 2, [3, 1])
        venv.send([0] * 2, [0, 4])
        seen = [venv.recv()[4]["env_ids"].tolist() for _ in range(4)]
    assert seen == [[3], [1], [0], [4]]


def test_environments_of_a_busy_worker_wait_for_it(tmp_path):
    """What is sent for another environment of the same worker follows the step that it is at."""
    gate = str(tmp_path / "open")
    fns = [functools.partial(GatedEnv, i, gate if i == 0 else None) for i in range(2)]
    with venv_of(fns, {"num_workers": 1, "start_method": "fork"}) as venv:
        venv.reset()
        venv.send([0], [0])
        venv.send([0], [1])
        with pytest.raises(errors.WorkerTimeoutError, match="0 of at least 1 environments are ready"):
            venv.recv(timeout=0.05)
        open(gate, "w").close()
        env_ids = [*venv.recv()[4]["env_ids"].tolist(), *venv.recv()[4]["env_ids"].tolist()]
        assert env_ids == [0, 1]


# ---------------------------------------------------------------- what may go wrong


def test_wrong_calls_send_nothing(way):
    """Each is said, and the environments that are pending stay so."""
    with counting(way) as venv:
        venv.reset()
        with pytest.raises(errors.CallError, match="no environment is being stepped"):
            venv.recv()
        for env_ids in ([], [0, 0], [5], [-1]):
            with pytest.raises(errors.ActionError, match="different numbers from 0 to 4, at least one, got"):
                venv.send([0] * len(env_ids), env_ids)
        with pytest.raises(errors.ActionError, match="got 3"):
            venv.send([0] * 3, [1, 2])
        venv.send([0] * 2, [1, 2])
        with pytest.raises(errors.CallError, match=r"envs \[2\] are pending already"):
            venv.send([0] * 2, [2, 3])
        for count in (0, 3):
            with pytest.raises(errors.CallError, match=f"from 1 to the number of .* pending, 2, got {count}"):
                venv.recv(count)
        for use in (lambda: venv.step([0] * 5), venv.reset_async, lambda: venv.call("tell")):
            with pytest.raises(AlreadyPendingCallError, match="pending call to `send`"):
                use()
        assert sorted(venv.recv(2)[4]["env_ids"].tolist()) == [1, 2]
        assert venv.step([0] * 5)[0][:, 2].tolist() == [1, 2, 2, 1, 1]
    for use in (lambda: venv.send([0] * 5), venv.recv):
        with pytest.raises(ClosedEnvironmentError):
            use()


@pytest.mark.parametrize(
    "options",
    [{"on_failure": "restart"}, {"max_episodes_per_worker": 3}, {"autoreset_mode": AutoresetMode.DISABLED}],
)
def test_what_it_does_not_go_with_is_said(options):
    """Before anything is sent."""
    with counting({"start_method": "fork"}, **options) as venv:
        venv.reset()
        with pytest.raises(errors.ConfigError, match="steps of some environments are not possible with"):
            venv.send([0] * 5)
        venv.step([0] * 5)


def test_a_whole_reset_drops_what_is_pending(way):
    """Also what waits for its worker, and what is ready: the next steps are those after the reset."""
    with counting(way) as venv:
        for _ in range(3):
            venv.reset()
            venv.send([0] * 3, [0, 1, 2])
            venv.recv()
            venv.send([0] * 2, [3, 4])
        assert venv.reset()[0][:, 2].tolist() == [0] * 5
        venv.send([0] * 5)
        assert venv.recv(5)[0][:, 2].tolist() == [1] * 5


def test_close_with_pending_environments(way):
    """It ends, with Gymnasium's warning."""
    venv = counting(way)
    venv.reset()
    venv.send([0] * 5)
    with pytest.warns(UserWarning, match="pending call to `send`"):
        venv.close()


@pytest.mark.parametrize("env_ids", [[0, 1, 2, 3], [2], [1, 2]])
def test_an_error_names_its_environment(env_ids, way):
    """It is the environment's own, and ends the others."""
    fns = [functools.partial(FaultyEnv, i, "step" if i == 2 else "", "raise", 1) for i in range(4)]
    with venv_of(fns, way) as venv:
        venv.reset()
        venv.send([0] * len(env_ids), env_ids)
        with pytest.raises(KeyError, match="bad torque") as caught:
            venv.recv(len(env_ids))
        assert caught.value.__cause__.env_index == 2
        with pytest.raises(errors.BrokenError):
            venv.reset()


@pytest.mark.parametrize("in_series", [1, 2])
def test_the_death_of_a_worker_is_noticed(in_series):
    """While others are ready or not; it names the environment."""
    fns = [functools.partial(FaultyEnv, i, "step" if i == 3 else "", "SIGKILL", 1) for i in range(4)]
    venv = venv_of(fns, {"in_series": in_series, "start_method": "fork"})
    pids = [worker.process.pid for worker in venv._engine._pool.workers]
    venv.reset()
    venv.send([0] * 4)
    with pytest.raises(errors.WorkerDiedError, match="env 3") as caught:
        venv.recv(4)
    assert caught.value.env_index == 3
    venv.close()
    assert eventually(lambda: gone(pids))


def test_after_a_timeout_all_is_pending_yet():
    """The step that was late can be received, and nobody's is one step late."""
    fns = [functools.partial(SleepyEnv, i, 1, 0.3 * (i == 1)) for i in range(3)]
    with venv_of(fns, {"in_series": 1, "start_method": "fork"}, step_timeout=0.05) as venv:
        venv.reset()
        venv.send([0] * 3)
        with pytest.raises(errors.WorkerTimeoutError) as caught:
            venv.recv(3)
        assert 1 in caught.value.env_indices
        found = venv.recv(3, timeout=30)
        assert found[0][:, 2].tolist() == [1] * 3
        assert sorted(found[4]["env_ids"].tolist()) == [0, 1, 2]


def test_a_split_can_be_received_from_one_by_one(way):
    """While its sibling goes in step; the whole cannot, which is said."""
    if way.get("in_series") == 1:
        pytest.skip("a worker of one environment cannot be split")
    with counting(way, 4) as venv:
        venv.reset()
        one, two = venv.split(2)
        one.send([0] * 2)
        assert two.step([0] * 2)[0][:, 2].tolist() == [1, 1]
        seen = one.recv()[4]["env_ids"].tolist()
        one.send([0] * len(seen), seen)
        steps = [int(count) for count in one.recv(2)[0][:, 2]]
        assert sorted(steps) in ([1, 2], [2, 2])
        with pytest.raises(errors.CallError, match="send them to a split"):
            venv.send([0] * 4)
