"""on_failure="restart": whoever dies, hangs or raises is replaced, and nobody else notices."""

from __future__ import annotations

import functools
import os

import numpy as np
import pytest
from engines import START_METHODS, make_engine, reset
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from test_engine import assert_same
from toys import CountingEnv, FailingOnceEnv, FaultyEnv, KilledOnceEnv, SampledEnv

from fastvec import SharedMemVectorEnv, errors
from fastvec._core import config
from fastvec._core.launch import wait_for_exit
from fastvec._env_access import call_method, get_attr
from fastvec._spaces import GymnasiumAdapter

MODES = list(AutoresetMode)


@pytest.fixture
def flag(tmp_path):
    return str(tmp_path / "failed")


def failing_once(flag, where, how, at=3, **options):
    """Five environments on three workers; env 2, on the second with env 3, fails once."""
    fns = [functools.partial(FailingOnceEnv, i, flag, where if i == 2 else "", how, at=at) for i in range(5)]
    return make_engine(fns, num_workers=3, on_failure="restart", close_timeout=1.0, **options)


def step(engine):
    engine.send(np.zeros(engine.num_envs, np.int64))
    return engine.recv()


@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("how", ["raise", "sys.exit", "os._exit", "SIGKILL", "sleep"])
def test_a_worker_that_fails_in_a_step_is_replaced(flag, how, method):
    """Its episodes are cut off with the last observations that are known, the others go on as if nothing were."""
    engine = failing_once(flag, "step", how, start_method=method, step_timeout=1.0 if how == "sleep" else 30.0)
    reset(engine)
    step(engine)
    step(engine)
    result = step(engine)
    assert result.observations.tolist() == [[0, 0, 3], [1, 0, 3], [2, 0, 0], [3, 0, 0], [4, 0, 3]]
    assert result.rewards.tolist() == [3, 3, 0, 0, 3]
    assert list(result.flags) == [0, 0, 2, 2, 0]
    assert {i: final.tolist() for i, final in result.finals.items()} == {2: [2, 0, 2], 3: [3, 0, 2]}
    assert result.reset_infos == {2: {"episode_number": 0}, 3: {"episode_number": 0}}
    told = result.infos[2]["worker_restarted"]
    assert told == result.infos[3]["worker_restarted"]
    reason, exitcode = {
        "raise": ("env 2 (worker 1, pid", None),
        "sys.exit": ("raised SystemExit in step: 3", None),
        "os._exit": ("ended itself with exit code 9", 9),
        "SIGKILL": ("killed by SIGKILL", -9),
        "sleep": ("did not finish within 1.0 s: waiting for envs [2, 3]", None),
    }[how]
    assert reason in told["reason"]
    assert told["exitcode"] == exitcode
    assert [sorted(info) for info in result.infos[:2]] == [["action", "count", "kind"]] * 2
    result = step(engine)
    assert result.rewards.tolist() == [4, 4, 1, 1, 4]
    assert [info["count"] for info in result.infos] == [4, 4, 1, 1, 4]
    engine.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("observation", ["box", "text"])
def test_each_autoreset_mode_shows_the_cut_in_its_own_way(flag, mode, observation):
    """The others' rows equal those of a run without a failure, and two runs with it are equal."""
    space = {"box": spaces.Box(0, 1, (2,), np.float32), "text": spaces.Text(9)}[observation]
    action = spaces.Discrete(3)

    def run(fails):
        if os.path.exists(flag):
            os.unlink(flag)
        fns = [functools.partial(SampledEnv, space, action, i) for i in range(4)]
        if fails:
            fns[1] = functools.partial(KilledOnceEnv, flag, 8, space, action, 1)
        options = {"on_failure": "restart"} if fails else {}
        with SharedMemVectorEnv(fns, autoreset_mode=mode, in_series=2, start_method="fork", **options) as venv:
            found = [venv.reset(seed=5)[0]]
            for _ in range(20):
                *rest, infos = venv.step([0, 1, 2, 0])
                infos.pop("worker_restarted", None)
                infos.pop("_worker_restarted", None)
                if "worker_restarted" in infos.get("final_info", {}):
                    del infos["final_info"]["worker_restarted"], infos["final_info"]["_worker_restarted"]
                found.append((*rest, infos))
                ended = rest[2] | rest[3]
                if mode is AutoresetMode.DISABLED and ended.any():
                    found.append(venv.reset(options={"reset_mask": ended})[0])
        return found

    one, two, undisturbed = run(True), run(True), run(False)
    assert_same(one, two)
    steps = [found for found in one if len(found) == 5]
    expected = [found for found in undisturbed if len(found) == 5]
    for found, wanted in zip(steps, expected, strict=True):
        for part, other in zip(found[:4], wanted[:4], strict=True):
            assert_same(part[2:], other[2:])
    cut = [
        index for index, found in enumerate(steps) if found[3][0] and found[3][1] and found[1][0] == found[1][1] == 0
    ]
    assert len(cut) == 1
    (index,) = cut
    previous = steps[index - 1][0]
    if mode is AutoresetMode.SAME_STEP:
        finals = steps[index][4]["final_obs"]
        assert_same(finals[0], previous[0])
        assert_same(finals[1], previous[1])
    else:
        assert_same(steps[index][0][:2], previous[:2])


def test_a_worker_that_fails_in_a_reset_is_reset_again_with_its_arguments(flag):
    """The caller gets a reset like any other."""
    engine = failing_once(flag, "reset", "SIGKILL")
    result = reset(engine, seed=7)
    assert result.observations.tolist() == [[i, 1 if i in (2, 3) else 0, 0] for i in range(5)]
    calls = engine.call("calls", get_attr, "reset_calls", env_ids=[2, 4])
    assert [one[-1] for one in calls] == [(9, None), (11, None)]
    result = step(engine)
    assert (result.rewards.tolist(), list(result.flags)) == ([1] * 5, [0] * 5)
    engine.close()


def test_a_worker_that_dies_in_a_call_is_replaced_and_the_next_step_tells(flag):
    """The call raises, as its result is lost; further calls reach the new worker."""
    engine = failing_once(flag, "method", "SIGKILL")
    reset(engine)
    step(engine)
    with pytest.raises(errors.WorkerDiedError, match=r"worker 1 .* died during method"):
        engine.call("method", call_method, "method", env_ids=range(5))
    assert engine.call("method", call_method, "method", env_ids=range(5)) == [0, 1, 2, 3, 4]
    result = step(engine)
    assert list(result.flags) == [0, 0, 2, 2, 0]
    assert result.rewards.tolist() == [2, 2, 0, 0, 2]
    assert {i: final.tolist() for i, final in result.finals.items()} == {2: [2, 0, 1], 3: [3, 0, 1]}
    assert step(engine).rewards.tolist() == [3, 3, 1, 1, 3]
    engine.close()


def test_a_reset_after_a_death_between_steps_tells_nothing(flag):
    """All episodes end with it anyway."""
    engine = failing_once(flag, "method", "SIGKILL")
    reset(engine)
    with pytest.raises(errors.WorkerDiedError):
        engine.call("method", call_method, "method", env_ids=[2])
    reset(engine)
    assert list(step(engine).flags) == [0] * 5
    engine.close()


def test_an_idle_worker_that_is_killed_is_replaced():
    """The step that finds it dead tells of it."""
    engine = make_engine([functools.partial(CountingEnv, i) for i in range(4)], on_failure="restart")
    reset(engine)
    (pid,) = engine.call("pid", call_pid, env_ids=[3])
    os.kill(pid, 9)
    result = step(engine)
    assert result.rewards.tolist() == [1, 1, 0, 0]
    assert result.infos[3]["worker_restarted"]["exitcode"] == -9
    assert step(engine).rewards.tolist() == [2, 2, 1, 1]
    engine.close()


def call_pid(env):
    return os.getpid()


def test_a_constructor_that_fails_once_is_called_again(tmp_path):
    """It counts as one more replacement."""
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    open(second, "w").close()

    class Twice(FailingOnceEnv):
        def __init__(self, env_id):
            super().__init__(env_id, second if os.path.exists(second) else first, "constructor", "raise")
            self.flag, self.where, self.how = first, "step" if env_id == 0 else "", "SIGKILL"

        def fail_in(self, where):
            if where == "step" and self.where == "step" and not os.path.exists(first):
                os.unlink(second)  # the next constructor fails
                open(first + "x", "w").close()
                self.flag = first
            super().fail_in(where)

    # The first replacement's constructor finds `second` gone and `first` there only after it has failed once.
    engine = make_engine([functools.partial(Twice, i) for i in range(2)], on_failure="restart", max_restarts=5)
    reset(engine)
    for _ in range(3):
        result = step(engine)
    assert list(result.flags) == [2, 0]
    engine.close()


def test_too_many_failures_within_the_window_are_an_error():
    """The last failure is raised as without restarts, and the engine is broken."""
    fns = [functools.partial(FaultyEnv, i, "step" if i == 1 else "", "raise", at=1) for i in range(2)]
    engine = make_engine(fns, on_failure="restart", max_restarts=2, restart_window=600.0)
    reset(engine)
    for _ in range(2):
        assert list(step(engine).flags) == [0, 2]
    with pytest.raises(KeyError, match="bad torque"):
        step(engine)
    with pytest.raises(errors.BrokenError, match="raised KeyError in step"):
        step(engine)
    engine.close()


def test_restarts_long_ago_do_not_count(flag):
    """Only those within the window do."""
    fns = [functools.partial(FaultyEnv, i, "step" if i == 1 else "", "raise", at=1) for i in range(2)]
    engine = make_engine(fns, on_failure="restart", max_restarts=1, restart_window=1e-6)
    reset(engine)
    for _ in range(4):
        assert list(step(engine).flags) == [0, 2]
    engine.close()


def test_infos_of_a_new_worker_are_read_with_its_own_columns(flag):
    """It learns and announces its schemas anew, whatever the old one had announced."""
    fns = [functools.partial(KilledOnceEnv, flag, 4, spaces.Discrete(3), spaces.Discrete(2), i) for i in range(2)]
    with SharedMemVectorEnv(fns, start_method="fork", on_failure="restart", num_workers=1) as venv:
        venv.reset(seed=0)
        for _ in range(3):
            venv.step([0, 0])
        assert venv.step([0, 0])[4]["worker_restarted"]["exitcode"].tolist() == [-9, -9]
        venv.step([0, 0])
        infos = venv.step([0, 0])[4]
        assert infos["int"].tolist() == [1, 1]
        assert infos["nested"]["deep"]["count"].tolist() == [1, 1]


def test_wrong_options_are_said():
    """A kind of reaction that does not exist, and one that needs workers."""
    for options, text in (
        ({"on_failure": "ignore"}, "on_failure must be 'raise' or 'restart', got 'ignore'"),
        ({"on_failure": "restart", "num_workers": 0}, "needs workers"),
        ({"max_restarts": -1}, "max_restarts must be at least 0"),
        ({"restart_window": 0}, "restart_window must be a positive number"),
    ):
        with pytest.raises(errors.ConfigError, match=text):
            config.EngineConfig.resolve(2, **options)


def test_another_space_in_a_new_worker_is_an_error(flag):
    """What a factory makes the second time must be what it made the first time."""

    class Fickle(FailingOnceEnv):
        def __init__(self):
            super().__init__(0, flag, "step", "raise", at=1)
            if os.path.exists(flag):
                self.observation_space = spaces.Box(0, 1, (9,), np.float32)

    engine = make_engine([Fickle], num_workers=1, on_failure="restart", max_restarts=2, adapter=GymnasiumAdapter())
    reset(engine)
    with pytest.raises(errors.SpaceMismatchError, match="those of a new worker 0 declare different"):
        step(engine)
    engine.close()


def kill_while_idle(venv, worker):
    """Kill a worker and wait until it has ended."""
    (process,) = [w.process for w in venv._engine._pool.workers if w.index == worker]
    os.kill(process.pid, 9)
    wait_for_exit([process], 10)


def test_a_call_on_a_worker_that_died_before_raises():
    """None of its results is made up."""
    engine = make_engine([functools.partial(CountingEnv, i) for i in range(4)], on_failure="restart")
    reset(engine)
    (pid,) = engine.call("pid", call_pid, env_ids=[0])
    os.kill(pid, 9)
    wait_for_exit([engine._pool.workers[0].process], 10)
    with pytest.raises(errors.WorkerDiedError, match="killed by SIGKILL"):
        engine.call("add", call_method, "add", 1, env_ids=range(4))
    assert engine.call("add", call_method, "add", 1, env_ids=range(4)) == [1, 2, 3, 4]
    engine.close()


@pytest.mark.parametrize("when", ["before", "in a call before"])
@pytest.mark.parametrize("observation", ["box", "text"])
@pytest.mark.parametrize("mode", MODES)
def test_a_reset_of_some_environments_of_a_worker_that_was_lost(mode, observation, when):
    """Those that are left out keep their observations until the next step, which tells of the cut; the others go on."""
    space = {"box": spaces.Box(0, 1, (2,), np.float32), "text": spaces.Text(9)}[observation]
    fns = [functools.partial(SampledEnv, space, spaces.Discrete(3), i) for i in range(4)]
    options = {"autoreset_mode": mode, "in_series": 2, "start_method": "fork"}
    with (
        SharedMemVectorEnv(fns, on_failure="restart", **options) as venv,
        SharedMemVectorEnv(fns, **options) as undisturbed,
    ):
        for one in (venv, undisturbed):
            one.reset(seed=5)
        before = venv.step([0] * 4)[0]
        assert_same(before, undisturbed.step([0] * 4)[0])
        kill_while_idle(venv, 0)
        if when != "before":
            with pytest.raises(errors.WorkerDiedError):
                venv.call("tell", 1)
        mask = {"options": {"reset_mask": np.array([True, False, False, False])}}
        observations = venv.reset(seed=9, **mask)[0]
        expected = undisturbed.reset(seed=9, **mask)[0]
        # Env 0 was reset with a seed, in the new worker as in the old one; the rest is as it was.
        assert_same(observations, expected)
        assert_same(observations[1:], before[1:])
        (found, wanted) = (one.step([0] * 4) for one in (venv, undisturbed))
        assert found[3].tolist() == [False, True, False, False]
        assert found[1].tolist() == [wanted[1][0], 0, *wanted[1][2:]]
        rest = [0, 2, 3]
        for row in rest:
            assert_same(found[0][row], wanted[0][row])
        infos = found[4]["final_info"] if mode is AutoresetMode.SAME_STEP else found[4]
        assert infos["_worker_restarted"].tolist() == [False, True, False, False]
        last = found[4]["final_obs"][1] if mode is AutoresetMode.SAME_STEP else found[0][1]
        assert_same(last, before[1])
        for _ in range(2 if mode is not AutoresetMode.DISABLED else 0):
            (found, wanted) = (one.step([0] * 4) for one in (venv, undisturbed))
            assert_same(found[0][0], wanted[0][0])
            assert_same(found[1][[0, 2, 3]], wanted[1][[0, 2, 3]])


@pytest.mark.parametrize("observation", ["box", "text"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_the_last_observation_is_shown_until_the_reset(mode, observation):
    """A reset of another environment leaves it in sight."""
    space = {"box": spaces.Box(0, 1, (2,), np.float32), "text": spaces.Text(9)}[observation]
    fns = [functools.partial(SampledEnv, space, spaces.Discrete(3), i) for i in range(2)]
    with SharedMemVectorEnv(fns, autoreset_mode=mode, num_workers=1, start_method="fork", on_failure="restart") as venv:
        venv.reset(seed=5)
        before = venv.step([0] * 2)[0]
        kill_while_idle(venv, 0)
        told = venv.step([0] * 2)
        assert told[3].tolist() == [True, True]
        assert_same(told[0], before)
        observations = venv.reset(options={"reset_mask": np.array([True, False])})[0]
        assert_same(observations[1], before[1])
        assert not np.array_equal(observations[0], before[0])


def test_the_log_has_the_whole_story(flag, caplog):
    """The traceback of what an environment raised; of a limit that is used up, which."""
    engine = failing_once(flag, "step", "raise", max_restarts=1)
    reset(engine)
    for _ in range(4):
        step(engine)
    assert "worker 1 was replaced: env 2 (worker 1, pid" in caplog.text
    assert "in fail\n" in caplog.text
    assert 'raise KeyError("bad torque")' in caplog.text
    os.kill(engine._pool.workers[0].process.pid, 9)
    engine.send(np.zeros(5, np.int64))
    with pytest.raises(errors.WorkerDiedError) as caught:
        engine.recv()
    note = "max_restarts=1 workers were replaced within restart_window=300 s already"
    assert note in caplog.text
    assert getattr(caught.value, "__notes__", [note]) == [note]
    engine.close()


def keep_and_count(env_id, n):
    return {"env": env_id, "n": n}


@pytest.mark.parametrize(
    ("reset_options", "expected"),
    [
        (None, [None, None, None]),
        ("keep", [{"level": 3}] * 3),
        (keep_and_count, [{"env": 0, "n": n} for n in (2, 3, 4)]),
    ],
)
def test_options_of_automatic_resets_outlive_a_worker(reset_options, expected):
    """The replacement goes on with the options of the last reset, and with the count of automatic ones."""
    fns = [functools.partial(CountingEnv, i, horizon=2) for i in range(2)]
    options = {"reset_options": reset_options, "start_method": "fork", "autoreset_mode": AutoresetMode.SAME_STEP}
    with SharedMemVectorEnv(fns, num_workers=2, on_failure="restart", **options) as venv:
        venv.reset(seed=5, options={"level": 3})
        for _ in range(2):
            venv.step([0, 0])
        kill_while_idle(venv, 0)
        for _ in range(6):
            venv.step([0, 0])
        calls = venv.call("reset_calls")
    assert [options for _, options in calls[0]] == expected
    assert len(calls[1]) == 5
