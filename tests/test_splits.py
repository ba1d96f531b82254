"""Splits of every face: the same results in any order, one end for all, nothing left behind."""

from __future__ import annotations

import functools
import gc
import os
import signal

import gymnasium
import numpy as np
import pytest
from engines import eventually, gone
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_engine import SPACES, assert_same
from toys import BigInfoEnv, CountingEnv, FaultyEnv, SleepyEnv, SpaceEnv, StreamEnv

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from fastvec import SharedMemVecEnv, SharedMemVectorEnv, baselines, errors

WAYS = {
    "serial": {"num_workers": 0},
    "1 worker": {"num_workers": 1, "start_method": "fork"},
    "2 workers": {"num_workers": 2, "start_method": "fork"},
    "3 workers": {"num_workers": 3, "start_method": "fork"},
    "spawn": {"num_workers": 2, "start_method": "spawn"},
    "forkserver": {"num_workers": 2, "start_method": "forkserver"},
}


@pytest.fixture(params=["serial", "2 workers"])
def way(request):
    return WAYS[request.param]


def counting(count=5, horizon=3, cls=CountingEnv):
    return [functools.partial(cls, i, horizon) for i in range(count)]


def zeros(venv):
    return np.zeros(venv.num_envs, np.int64)


def without_clock(infos):
    for info in infos:
        if "episode" in info:
            info["episode"] = {key: value for key, value in info["episode"].items() if key != "t"}
    return infos


def merged(parts, splits):
    """Batches of splits as one of the whole."""
    first = parts[0]
    if isinstance(first, dict):
        return {key: merged([part[key] for part in parts], splits) for key in first}
    if isinstance(first, tuple):
        return tuple(merged(column, splits) for column in zip(*parts, strict=True))
    if isinstance(first, list):
        whole = [None] * sum(map(len, parts))
        for part, split in zip(parts, splits, strict=True):
            for env_id, one in zip(split.env_ids, part, strict=True):
                whole[env_id] = one
        return whole
    whole = np.empty((sum(map(len, parts)), *first.shape[1:]), first.dtype)
    for part, split in zip(parts, splits, strict=True):
        whole[list(split.env_ids)] = part
    return whole


def pipelined(splits, batches):
    """Step splits in a pipeline with batches of actions of the whole; the results as the whole would give them."""
    results = []
    last = splits[-1]
    for split in splits[:-1]:
        split.step_async(batches[0][list(split.env_ids)])
    for number, actions in enumerate(batches):
        last.step_async(actions[list(last.env_ids)])
        parts = []
        for split in splits:
            parts.append([*split.step_wait(), [dict(info) for info in split.reset_infos]])
            if split is not last and number + 1 < len(batches):
                split.step_async(batches[number + 1][list(split.env_ids)])
        results.append([merged(column, splits) for column in zip(*parts, strict=True)])
        without_clock(results[-1][3])
    return results


def stepped(venv, batches):
    """The same of an ordinary environment."""
    results = []
    for actions in batches:
        observations, *others = venv.step(actions)
        observations = dict(observations) if isinstance(observations, dict) else observations
        results.append([observations, *others[:2], list(others[2]), [dict(info) for info in venv.reset_infos]])
        without_clock(results[-1][3])
    return results


def batches_for(venv, steps, seed=3):
    rng = np.random.default_rng(seed)
    space = venv.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return [rng.integers(space.n, size=venv.num_envs) for _ in range(steps)]
    return [rng.uniform(space.low, space.high, (venv.num_envs, *space.shape)).astype(space.dtype) for _ in range(steps)]


# ---------------------------------------------------------------- the same results


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "BipedalWalker-v3", "HalfCheetah-v5"])
def test_pipelined_halves_equal_dummy_bit_for_bit(env_id, name):
    """Observations, rewards, dones, infos and reset infos, over several episodes, from seeds given to the whole."""
    with make_vec_env(env_id, n_envs=7, seed=1, vec_env_cls=SharedMemVecEnv, vec_env_kwargs=WAYS[name]) as venv:
        batches = batches_for(venv, 120)
        halves = venv.split(2)
        assert sorted(i for half in halves for i in half.env_ids) == list(range(7))
        venv.seed(5)
        first = venv.reset()
        for half in halves:  # a split takes no part in the resets of the whole
            half.reset_infos = [venv.reset_infos[i] for i in half.env_ids]
        ours = [[first], *pipelined(halves, batches)]
    dummy = make_vec_env(env_id, n_envs=7, seed=1)
    dummy.seed(5)
    assert_same(ours, [[dummy.reset()], *stepped(dummy, batches)])
    dummy.close()


@pytest.mark.parametrize("name", ["box", "image", "dict", "tuple", "discrete", "multibinary"])
def test_halves_go_on_where_the_whole_was(name, way):
    """Split amid an episode: the next steps are those that would have come; later the whole is stepped again."""
    fns = [functools.partial(SpaceEnv, SPACES[name], i) for i in range(5)]
    with SharedMemVecEnv(fns, **way) as venv:
        batches = batches_for(venv, 30)
        venv.seed(2)
        venv.set_options({"option": 1})
        venv.reset()
        first = stepped(venv, batches[:9])
        halves = venv.split(2)
        second = pipelined(halves, batches[9:20])
        for half in halves:  # the whole takes no part in its splits' steps
            for env_id, info in zip(half.env_ids, half.reset_infos, strict=True):
                venv.reset_infos[env_id] = info
        ours = [*first, *second, *stepped(venv, batches[20:])]
    dummy = DummyVecEnv(fns)
    dummy.seed(2)
    dummy.set_options({"option": 1})
    dummy.reset()
    assert_same(ours, stepped(dummy, batches))
    dummy.close()


@pytest.mark.parametrize(("count", "workers", "parts"), [(9, 2, 3), (8, 1, 4), (7, 3, 2), (4, 2, 2), (5, 0, 5)])
def test_any_number_of_parts(count, workers, parts):
    """Each worker's environments are divided as evenly as possible, into neighbours."""
    with SharedMemVecEnv(counting(count), start_method="fork", num_workers=workers) as venv:
        batches = batches_for(venv, 10)
        venv.reset()
        splits = venv.split(parts)
        ours = pipelined(splits, batches)
        sizes = [split.num_envs for split in splits]
        assert max(sizes) - min(sizes) <= max(workers, 1)
        assert [half.get_attr("env_id") for half in splits] == [list(half.env_ids) for half in splits]
    whole = SharedMemVecEnv(counting(count), num_workers=0)
    whole.reset()
    assert_same(ours, stepped(whole, batches))
    whole.close()


def test_objects_travel_too(way):
    """Text observations, actions that are no array, and infos of every kind."""
    fns = [functools.partial(StreamEnv, "dict", i) for i in range(4)]
    found = []
    for parts in (1, 2):
        with SharedMemVecEnv(fns, **way) as venv:
            venv.seed(1)
            venv.reset()
            steps = []
            if parts == 1:
                steps = stepped(venv, [[0, 1, 2, 0]] * 20)
            else:
                halves = venv.split()
                for _ in range(20):
                    for half in halves:
                        half.step_async([[0, 1, 2, 0][i] for i in half.env_ids])
                    results = [[*half.step_wait(), list(half.reset_infos)] for half in reversed(halves)]
                    steps.append([merged(column, halves[::-1]) for column in zip(*results, strict=True)])
            found.append(steps)
    assert_same(*found)


def test_a_split_is_seeded_and_reset_as_an_environment_of_its_own(way):
    """seed() of a half counts from its own env 0; the other half goes on undisturbed."""
    with SharedMemVecEnv(counting(4), **way) as venv:
        venv.reset()
        first, second = venv.split()
        second.step(zeros(second))
        assert list(first.seed(7)) == [7, 8]
        first.set_options([{"a": 1}, {}])
        first.reset()
        calls = first.get_attr("reset_calls")
        assert [its[-1] for its in calls] == [(7, {"a": 1}), (8, None)]
        assert second.step(zeros(second))[1].tolist() == [2, 2]
        venv.seed(20)
        venv.reset()
        assert [its[-1][0] for its in venv.get_attr("reset_calls")] == [20, 21, 22, 23]


def test_the_rule_for_resets_and_the_search_for_nan_go_on(way):
    """reset_options is asked by the index in the whole; episodes and steps are counted on."""

    class NanEnv(CountingEnv):
        def step(self, action):
            observation, *others = super().step(action)
            if self.env_id == 3 and self.episode == 1 and self.count == 2:
                observation[1] = np.nan
            return observation, *others

    def rule(env_id, number):
        return {"env": env_id, "number": number}

    with SharedMemVecEnv(counting(4, 3, NanEnv), check_nan=True, reset_options=rule, **way) as venv:
        venv.seed(5)
        venv.reset()
        venv.step(zeros(venv))
        halves = venv.split()
        for _ in range(2):
            for half in halves:
                half.step(zeros(half))
        asked = [calls for half in halves for calls in half.get_attr("reset_calls")]
        assert sorted(calls[-1][1]["env"] for calls in asked) == [0, 1, 2, 3]
        assert {calls[-1][1]["number"] for calls in asked} == {1}
        half = next(half for half in halves if 3 in half.env_ids)
        half.step(zeros(half))
        local = half.env_ids.index(3)
        with pytest.raises(
            errors.NanError, match=rf"\[1\] of env {local} is nan, returned by step 2 of episode 2 since"
        ):
            half.step(zeros(half))


SCHEDULE = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["sending", "receiving", "calling", "resetting"])))


@pytest.mark.parametrize("semaphores", [True, False])
def test_any_interleaving_of_splits_is_right(monkeypatch, semaphores):
    """Whatever is sent, received, called and reset in whatever order, each split does what it does alone."""
    if not semaphores:
        monkeypatch.setattr("fastvec._core.pool.semaphores_work", lambda: False)
    venv = SharedMemVecEnv(counting(9), num_workers=2, start_method="fork")
    splits = venv.split(3)
    ids = [split.env_ids for split in splits]

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(SCHEDULE)
    def follows(schedule):
        venv.reset()
        alone = [SharedMemVecEnv([functools.partial(CountingEnv, i, 3) for i in its], num_workers=0) for its in ids]
        for split, one in zip(splits, alone, strict=True):
            one.reset()
            episodes = split.get_attr("episode")[0]
            one.env_method("__setattr__", "episode", episodes)
        for number, what in schedule:
            split, one = splits[number], alone[number]
            if what == "sending" and not split.waiting:
                for each in (split, one):
                    each.step_async(zeros(each))
            elif what == "receiving" and split.waiting:
                assert_same(split.step_wait(), one.step_wait())
            elif what == "calling":
                assert split.get_attr("count") == one.get_attr("count")
            elif what == "resetting":
                assert_same(split.reset(), one.reset())
        for split, one in zip(splits, alone, strict=True):
            if split.waiting:
                assert_same(split.step_wait(), one.step_wait())
            one.close()

    follows()
    venv.close()


@pytest.mark.parametrize("semaphores", [True, False])
def test_large_replies_and_messages_of_both_halves_do_not_block_each_other(monkeypatch, semaphores):
    """Infos of a megabyte in both, received in the other order, and a large message to one while the other is stuck."""
    if not semaphores:
        monkeypatch.setattr("fastvec._core.pool.semaphores_work", lambda: False)
    with SharedMemVecEnv(counting(4, None, BigInfoEnv), num_workers=2, start_method="fork") as venv:
        venv.reset()
        first, second = venv.split()
        for count in range(1, 4):
            first.step_async(zeros(first))
            second.step_async(zeros(second))
            for half in (second, first):
                assert [len(info["blob"]) for info in half.step_wait()[3]] == [1_000_000] * 2
            first.step_async(zeros(first))
            blob = bytes(3_000_000)
            second.set_attr("blob", blob)
            assert second.get_attr("blob") == [blob] * 2
            second.set_options({"blob": blob})
            second.reset()
            assert first.step_wait()[3][0]["count"] == 2 * count


# ---------------------------------------------------------------- what is refused


def test_what_cannot_be_split_is_said():
    """Too few environments, too few parts, a pending step, a second time, and workers that are replaced."""
    with SharedMemVecEnv(counting(3), num_workers=2, start_method="fork") as venv:
        with pytest.raises(errors.ConfigError, match=r"a worker has only 1: in_series must be at least 2"):
            venv.split()
        with pytest.raises(errors.ConfigError, match="parts must be"):
            venv.split(1)
        venv.reset()  # nothing has happened
    with SharedMemVecEnv(counting(4), num_workers=2, start_method="fork") as venv:
        venv.reset()
        venv.step_async(zeros(venv))
        with pytest.raises(errors.CallError, match=r"not possible while a step is pending: receive it first"):
            venv.split()
        venv.step_wait()
        half, _ = venv.split()
        for whole in (venv, half):
            with pytest.raises(errors.CallError, match="have been split already"):
                whole.split()
    for options in ({"on_failure": "restart"}, {"max_episodes_per_worker": 5}):
        with SharedMemVecEnv(counting(4), num_workers=2, start_method="fork", **options) as venv:
            with pytest.raises(errors.ConfigError, match=r"split\(\) and .* do not go together"):
                venv.split()
            venv.reset()
    venv = SharedMemVecEnv(counting(4), num_workers=0)
    venv.close()
    with pytest.raises(errors.ClosedError):
        venv.split()


def test_the_whole_waits_for_its_splits(way):
    """It steps only while nothing is pending; it is asked at any time; its reset drops what is pending."""
    with SharedMemVecEnv(counting(4), **way) as venv:
        venv.reset()
        first, second = venv.split()
        first.step_async(zeros(first))
        with pytest.raises(errors.CallError, match="a step of split 0 is pending: receive it before using the whole"):
            venv.step(zeros(venv))
        assert venv.get_attr("env_id", [3, 0]) == [3, 0]
        assert venv.env_method("add", 1, b=1, indices=2) == [4]
        with pytest.raises(AttributeError):
            venv.get_attr("nope")
        assert first.step_wait()[1].tolist() == [1, 1]
        second.step_async(zeros(second))
        assert venv.reset()[:, 2].tolist() == [0] * 4
        with pytest.raises(errors.CallError, match="no step is pending"):
            second.step_wait()
        venv.step_async(zeros(venv))
        with pytest.raises(errors.CallError, match="a step is pending already"):
            second.step_async(zeros(second))
        assert venv.get_attr("count") == [1] * 4
        assert venv.step_wait()[1].tolist() == [1] * 4
        assert first.action_space is not venv.action_space


# ---------------------------------------------------------------- ends


def pids_of(venv):
    return set(venv.env_method("pid"))


class PidEnv(CountingEnv):
    def pid(self):
        return os.getpid()


@pytest.mark.parametrize("order", ["halves", "whole", "one, whole", "pending", "dropped", "whole dropped"])
def test_workers_end_with_the_last(order):
    """Whatever is closed first; a half that is left goes on meanwhile; closing again is nothing."""
    venv = SharedMemVecEnv(counting(4, None, PidEnv), num_workers=2, start_method="fork")
    pids = pids_of(venv)
    venv.reset()
    halves = venv.split()
    if order == "pending":
        for half in halves:
            half.step_async(zeros(half))
    if order in ("halves", "one, whole", "pending"):
        halves[0].close()
        with pytest.raises(errors.ClosedError):
            halves[0].step(zeros(halves[0]))
        if order != "pending":
            assert halves[1].step(zeros(halves[1]))[1].tolist() == [1, 1]
        assert not gone(pids)
    if order in ("halves", "pending"):
        halves[1].close()
    elif order in ("whole", "one, whole"):
        venv.close()
    elif order == "whole dropped":
        del venv
        gc.collect()
        assert halves[1].step(zeros(halves[1]))[1].tolist() == [1, 1]
        for half in halves:
            half.close()
    else:
        del venv, halves
        gc.collect()
    assert eventually(lambda: gone(pids))


def test_closing_one_half_with_a_large_reply_keeps_the_other_going():
    """The reply that nobody wants any more does not stop its worker."""
    venv = SharedMemVecEnv(counting(4, None, BigInfoEnv), num_workers=2, start_method="fork")
    venv.reset()
    first, second = venv.split()
    first.step_async(zeros(first))
    first.close()
    for count in range(1, 4):
        assert [info["count"] for info in second.step(zeros(second))[3]] == [count] * 2
    second.close()
    venv.close()


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "os._exit"])
def test_the_death_of_a_worker_ends_all(how):
    """The split that notices says who died, the other one why it is of no use any more."""
    fns = [functools.partial(FaultyEnv, i, "step" if i == 1 else "nowhere", how) for i in range(4)]
    venv = SharedMemVecEnv(fns, num_workers=2, start_method="fork")
    venv.reset()
    first, second = venv.split()
    assert 1 in second.env_ids
    first.step(zeros(first))
    first.step_async(zeros(first))
    second.step_async(zeros(second))
    second.step_wait()
    second.step(zeros(second))
    with pytest.raises(errors.WorkerDiedError, match=r"worker 0 \(pid \d+, env 0\) died during step"):
        second.step(zeros(second))
    for use in (first.step_wait, first.reset, venv.reset, lambda: first.step(zeros(first)), second.reset):
        with pytest.raises(errors.BrokenError, match=r"worker 0 .* died during step"):
            use()
    for one in (first, second, venv):
        one.close()


def test_a_killed_worker_is_noticed_by_who_waits():
    """SIGKILL from outside while one half is pending."""

    class Sleepy(SleepyEnv, PidEnv):
        pass

    fns = [functools.partial(Sleepy, i, at=1, seconds=60) for i in range(2)]
    venv = SharedMemVecEnv(fns, num_workers=1, start_method="fork")
    (pid,) = pids_of(venv)
    venv.reset()
    first, second = venv.split()
    first.step_async([0])
    second.step_async([0])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(errors.WorkerDiedError, match="SIGKILL"):
        second.step_wait()
    with pytest.raises(errors.BrokenError, match="split 1 has ended them all"):
        first.step_wait()
    venv.close()


@pytest.mark.parametrize("name", ["serial", "2 workers"])
def test_what_an_environment_raises_ends_all(name):
    """The split of that environment raises it, and notes which one of the whole it is; the other one says why."""
    fns = [functools.partial(FaultyEnv, i, "step" if i == 3 else "nowhere", "raise") for i in range(4)]
    venv = SharedMemVecEnv(fns, **WAYS[name])
    venv.reset()
    first, second = venv.split()
    for _ in range(2):
        first.step_async(zeros(first))
        second.step(zeros(second))
        first.step_wait()
    first.step_async(zeros(first))
    with pytest.raises(KeyError, match="bad torque") as caught:
        second.step(zeros(second))
    cause = caught.value.__cause__
    assert isinstance(cause, errors.EnvError)
    assert second.env_ids[cause.env_index] == 3
    if hasattr(caught.value, "__notes__"):
        assert f"env {cause.env_index} of split 1 is env 3 of the whole" in caught.value.__notes__
    for use in (first.step_wait, second.reset, venv.reset):
        with pytest.raises(errors.BrokenError, match=r"ended .*bad torque"):
            use()
    venv.close()


def test_what_an_environment_raises_in_a_call_ends_nothing(way):
    """Both halves and the whole go on."""
    fns = [functools.partial(FaultyEnv, i, "method" if i == 3 else "nowhere", "raise") for i in range(4)]
    with SharedMemVecEnv(fns, **way) as venv:
        venv.reset()
        halves = venv.split()
        for one in (halves[1], venv):
            with pytest.raises(KeyError, match="bad torque"):
                one.env_method("method")
        assert [half.step(zeros(half))[1].tolist() for half in halves] == [[1, 1]] * 2
        assert venv.step(zeros(venv))[1].tolist() == [2] * 4


def test_each_split_has_its_own_timeout():
    """A late step of one, and the other's behind it, are received later; nothing gets out of step."""
    fns = [functools.partial(SleepyEnv, i, at=1 if i == 0 else 0, seconds=1.0) for i in range(4)]
    with SharedMemVecEnv(fns, num_workers=2, start_method="fork", step_timeout=0.2) as venv:
        venv.reset()
        first, second = venv.split()
        first.step_async(zeros(first))
        second.step_async(zeros(second))
        for half in (second, first):
            with pytest.raises(
                errors.WorkerTimeoutError, match=r"step did not finish within 0.2 s.* of worker 0"
            ) as late:
                half.step_wait()
            assert late.value.env_indices == (0,)

        def received(half):
            try:
                return half.step_wait()[1].tolist()
            except errors.WorkerTimeoutError:
                return None

        assert [eventually(lambda: received(half)) for half in (second, first)] == [[1, 1]] * 2  # noqa: B023
        assert [half.step(zeros(half))[1].tolist() for half in (first, second)] == [[2, 2]] * 2


def test_a_late_step_of_the_whole_names_the_environments_of_the_whole():
    """And is received later, also after one half of it has come."""
    fns = [functools.partial(SleepyEnv, i, at=1 if i == 3 else 0, seconds=0.6) for i in range(4)]
    with SharedMemVecEnv(fns, num_workers=2, start_method="fork", step_timeout=0.2) as venv:
        venv.reset()
        venv.split()
        venv.step_async(zeros(venv))
        with pytest.raises(errors.WorkerTimeoutError, match="split 1: step did not finish within") as late:
            venv.step_wait()
        assert late.value.env_indices == (3,)
        seen = []
        while not seen:
            try:
                seen.append(venv.step_wait()[1].tolist())
            except errors.WorkerTimeoutError:
                continue
        assert seen == [[1] * 4]
        assert venv.step(zeros(venv))[1].tolist() == [2] * 4


def test_an_interrupted_wait_leaves_both_steps_pending():
    """Ctrl-C in step_wait() of one: both steps can still be received."""
    fns = [functools.partial(SleepyEnv, i, at=1 if i == 0 else 0, seconds=0.6) for i in range(4)]
    with SharedMemVecEnv(fns, num_workers=2, start_method="fork") as venv:
        venv.reset()
        first, second = venv.split()
        first.step_async(zeros(first))
        second.step_async(zeros(second))
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                first.step_wait()
        finally:
            signal.signal(signal.SIGALRM, before)
        assert [half.step_wait()[1].tolist() for half in (second, first)] == [[1, 1]] * 2
        assert [half.step(zeros(half))[1].tolist() for half in (second, first)] == [[2, 2]] * 2


def test_an_interrupt_amid_the_commands_of_a_batch_ends_all(monkeypatch):
    """A worker might wait for a ring that never comes: the other split is of no use either, and says so."""
    venv = SharedMemVecEnv(counting(4), num_workers=2, start_method="fork")
    venv.reset()
    first, second = venv.split()
    second.step_async(zeros(second))
    bell = first._engine._pool.workers[1].command_bell

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bell, "ring", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.step_async(zeros(first))
    for use in (first.step_wait, second.step_wait, venv.reset):
        with pytest.raises(errors.BrokenError, match="sending step to the workers was interrupted"):
            use()
    venv.close()


def test_a_forked_child_has_no_splits():
    """Its copies refuse to work, and closing them does nothing to the parent's."""
    with SharedMemVecEnv(counting(4), num_workers=2, start_method="fork") as venv:
        venv.reset()
        first, second = venv.split()
        first.step_async(zeros(first))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for use in (first.step_wait, second.reset, venv.reset):
                    try:
                        use()
                    except errors.CallError:
                        continue
                    os._exit(2)
                for one in (first, second, venv):
                    one.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        second.step_async(zeros(second))
        assert [half.step_wait()[1].tolist() for half in (first, second)] == [[1, 1]] * 2


@pytest.mark.parametrize("name", ["spawn", "forkserver"])
def test_a_program_that_is_killed_leaves_no_worker(name, tmp_path):
    """SIGKILL to a program amid a pipelined step."""
    import subprocess
    import sys

    script = tmp_path / "program.py"
    script.write_text(
        f"""
import functools, os, signal, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from toys import CountingEnv
from fastvec import SharedMemVecEnv

if __name__ == "__main__":
    venv = SharedMemVecEnv([functools.partial(CountingEnv, i) for i in range(4)], num_workers=2, start_method={name!r})
    venv.reset()
    pids = [worker.process.pid for worker in venv._engine._pool.workers]
    for half in venv.split():
        half.step_async([0, 0])
    print(*pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert eventually(lambda: gone(map(int, done.stdout.split())))


# ---------------------------------------------------------------- other faces


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("name", ["serial", "2 workers", "forkserver"])
def test_vector_environments_split_too(name, mode):
    """Each half equals a SyncVectorEnv over its environments, from before the split on, partial resets included."""
    fns = [functools.partial(StreamEnv, "dict", i) for i in range(5)]
    seeds = [4, 8, 15, 16, 23]
    with SharedMemVectorEnv(fns, autoreset_mode=mode, **WAYS[name]) as venv:
        venv.reset(seed=seeds)
        venv.step(np.zeros(5, np.int64))
        halves = venv.split()
        assert all(type(half) is SharedMemVectorEnv for half in halves)
        syncs = [SyncVectorEnv([fns[i] for i in half.env_ids], autoreset_mode=mode) for half in halves]
        for half, sync in zip(halves, syncs, strict=True):
            sync.reset(seed=[seeds[i] for i in half.env_ids])
            sync.step(zeros(sync))
            assert half.action_space == sync.action_space
            assert half.observation_space == sync.observation_space
        ended = [half._ended.copy() for half in halves]
        for _ in range(25):
            if mode is AutoresetMode.DISABLED:
                for number, (half, sync) in enumerate(zip(halves, syncs, strict=True)):
                    if ended[number].any():
                        assert_same(
                            half.reset(options={"reset_mask": ended[number].copy()}),
                            sync.reset(options={"reset_mask": ended[number].copy()}),
                        )
            for half in halves:
                half.step_async(zeros(half))
            for number in (1, 0):
                ours, theirs = halves[number].step_wait(), syncs[number].step(zeros(syncs[number]))
                assert_same(ours, theirs)
                ended[number] = ours[2] | ours[3]
        assert venv.get_attr("env_id") == (0, 1, 2, 3, 4)
        venv.reset(seed=1)
        lasts = [venv.step(np.zeros(5, np.int64))]
        while mode is not AutoresetMode.DISABLED or not (lasts[-1][2] | lasts[-1][3]).any():
            lasts.append(venv.step(np.zeros(5, np.int64)))
            if len(lasts) == 10:
                break
        if mode is AutoresetMode.DISABLED:  # whoever steps next is told whose episode has ended
            gone_on = lasts[-1][2] | lasts[-1][3]
            for half in halves:
                assert half._ended.tolist() == gone_on[list(half.env_ids)].tolist()
            with pytest.raises(errors.CallError, match="nobody resets them"):
                venv.step(np.zeros(5, np.int64))
            venv.reset(options={"reset_mask": gone_on})
            for half in halves:
                half.step(zeros(half))
        for sync in syncs:
            sync.close()


def test_baselines_environments_split_too(way):
    """By the same class, with the same steps."""
    options = {"num_workers": way["num_workers"], "context": way.get("start_method", "fork")}
    with baselines.SharedMemVecEnv(counting(4), **options) as venv:
        venv.reset()
        first, second = venv.split()
        for count in (1, 2):
            first.step_async(zeros(first))
            second.step_async(zeros(second))
            for half in (second, first):
                observations, rewards, dones, infos = half.step_wait()
                assert observations[:, 0].tolist() == list(half.env_ids)
                assert (rewards.tolist(), dones.tolist(), len(infos)) == ([count] * 2, [False] * 2, 2)
        assert venv.step(zeros(venv))[2].tolist() == [True] * 4
