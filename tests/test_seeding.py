"""Seeds and options: as the classes replaced have them, and better ones on request."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from engines import make_engine, reset
from toys import CountingEnv

from fastvec import SharedMemVectorEnv, errors
from fastvec._core.config import AutoresetMode
from fastvec._env_access import get_attr
from fastvec._seeding import action_seed, seeds_of


def test_spawned_seeds_have_nothing_in_common():
    """1000 neighbouring seeds times 64 environments are 64,000 different seeds, and the action spaces' are others."""
    found = [seed for s in range(1000) for seed in seeds_of(s, 64, "spawn")]
    assert len(set(found) | {action_seed(s, 64) for s in range(1000)}) == 65_000
    assert all(0 <= seed < 2**63 for seed in found)
    assert seeds_of(3, 2, "spawn") == seeds_of(3, 2, "spawn")
    assert seeds_of(3, 3) == [3, 4, 5]


def test_gymnasiums_face_spawns_seeds_on_request():
    """The environments get them, and both action spaces begin anew."""
    fns = [functools.partial(CountingEnv, i) for i in range(3)]
    samples = []
    for _ in range(2):
        with SharedMemVectorEnv(fns, num_workers=0, seeding="spawn") as venv:
            venv.reset(seed=7)
            assert [calls[-1][0] for calls in venv.get_attr("reset_calls")] == seeds_of(7, 3, "spawn")
            venv.reset(seed=[1, 2, 3])
            assert [calls[-1][0] for calls in venv.get_attr("reset_calls")] == [1, 2, 3]
            samples.append([venv.action_space.sample().tolist() for _ in range(5)])
            samples.append([int(venv.single_action_space.sample()) for _ in range(5)])
    assert samples[:2] == samples[2:]
    with pytest.raises(errors.ConfigError, match="seeding must be 'sequential' or 'spawn', got 'other'"):
        SharedMemVectorEnv(fns, seeding="other")


def test_sb3s_face_takes_lists_and_spawns_on_request():
    """A number counts up as in SB3 unless asked otherwise."""
    pytest.importorskip("stable_baselines3")
    from fastvec import SharedMemVecEnv

    fns = [functools.partial(CountingEnv, i) for i in range(3)]
    with SharedMemVecEnv(fns, num_workers=0) as venv:
        assert venv.seed(5) == [5, 6, 7]
        assert venv.seed([9, None, 3]) == [9, None, 3]
        venv.reset()
        assert [calls[-1][0] for calls in venv.get_attr("reset_calls")] == [9, None, 3]
        with pytest.raises(errors.ConfigError, match="a list of 3, one an environment: got 2"):
            venv.seed([1, 2])
        first, second, third = venv.seed()
        assert (second, third) == (first + 1, first + 2)
    with SharedMemVecEnv(fns, num_workers=0, seeding="spawn") as venv:
        assert venv.seed(7) == seeds_of(7, 3, "spawn")
        one = [int(venv.action_space.sample()) for _ in range(5)]
        venv.seed(7)
        assert [int(venv.action_space.sample()) for _ in range(5)] == one


def options_of(env_id, number):
    return {"env": env_id, "number": number} if env_id else None


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_automatic_resets_have_options_on_request(workers, mode, method):
    """None by default, the last given ones, or those that a function says."""
    for reset_options, expected in (
        (None, [[None] * 2] * 3),
        ("keep", [[{"level": 4}] * 2] * 3),
        (options_of, [[None] * 2, *([{"env": i, "number": 1}, {"env": i, "number": 2}] for i in (1, 2))]),
    ):
        engine = make_engine(
            [functools.partial(CountingEnv, i, horizon=1) for i in range(3)],
            num_workers=workers,
            start_method=method,
            autoreset_mode=mode,
            reset_options=reset_options,
        )
        reset(engine, options={"level": 4})
        for _ in range(2 if mode is AutoresetMode.SAME_STEP else 4):
            engine.send(np.zeros(3, np.int64))
            engine.recv()
        calls = engine.call("calls", get_attr, "reset_calls", env_ids=range(3))
        assert [[options for _, options in one[1:]] for one in calls] == expected
        engine.close()


def wrong_options(env_id, number):
    return 5


def test_a_function_of_reset_options_that_returns_nonsense():
    """Is told what it should return, with the environment."""
    engine = make_engine([functools.partial(CountingEnv, 0, horizon=1)], reset_options=wrong_options, num_workers=1)
    engine.reset([{}])
    engine.send(np.zeros(1, np.int64))
    with pytest.raises(errors.EnvError, match="reset_options must return a mapping or None, got 5"):
        engine.recv()
    engine.close()


def test_wrong_reset_options_are_said():
    """At once."""
    with pytest.raises(errors.ConfigError, match="reset_options must be None, 'keep' or a function"):
        make_engine([functools.partial(CountingEnv, 0)], reset_options={"level": 4})
