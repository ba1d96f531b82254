"""The first NaN or infinity is found, with everything that led to it."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
from engines import make_engine, reset
from gymnasium import spaces
from toys import CountingEnv, SpaceEnv

from fastvec import errors
from fastvec._core.config import AutoresetMode
from fastvec._spaces import GymnasiumAdapter

SPACE = spaces.Dict(x=spaces.Box(-np.inf, np.inf, (2, 2), np.float32), n=spaces.Discrete(9))


class SickEnv(CountingEnv):
    """Returns ``bad`` in one place, at one count of one episode."""

    def __init__(self, env_id, where, bad=np.nan, at=2, horizon=None, episode=0):
        super().__init__(env_id, horizon)
        self.observation_space = SPACE
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.where, self.bad, self.at, self.in_episode = where, bad, at, episode

    def look(self):
        x = np.full((2, 2), self.count, np.float32)
        if self.where == "observation" and (self.count, self.episode) == (self.at, self.in_episode):
            x[1, 0] = self.bad
        return {"x": x, "n": 1}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return self.look(), {}

    def step(self, action):
        _, reward, terminated, truncated, _ = super().step(action)
        sick = self.where == "reward" and self.count == self.at
        return self.look(), self.bad if sick else reward, terminated, truncated, {}


def run(workers, mode=AutoresetMode.SAME_STEP, steps=6, check_nan=True, **how):
    """Step five environments, the fourth of which is sick, until the error."""
    fns = [functools.partial(SickEnv, i, **(how if i == 3 else {"where": ""})) for i in range(5)]
    engine = make_engine(fns, num_workers=workers, check_nan=check_nan, autoreset_mode=mode)
    try:
        reset(engine, seed=40)
        for step in range(steps):
            engine.send(np.full((5, 2), step / 8, np.float32))
            engine.recv()
    finally:
        engine.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("how", "text"),
    [
        (
            {"where": "observation"},
            r"the observation\['x'\]\[1, 0\] of env 3 is nan, returned by step 2 of episode 1 since the seed 43, with "
            r"the action array\(\[0.125, 0.125\], dtype=float32\)",
        ),
        ({"where": "observation", "bad": -np.inf}, r"\[1, 0\] of env 3 is -inf, returned by step 2"),
        ({"where": "reward", "bad": np.inf, "at": 4}, r"the reward of env 3 is inf, returned by step 4 of episode 1"),
        ({"where": "observation", "at": 0}, r"\[1, 0\] of env 3 is nan, returned by reset\(\)"),
        ({"where": "observation", "at": 0, "horizon": 3, "episode": 1}, r"is nan, returned by the automatic reset\(\)"),
        (
            {"where": "observation", "at": 1, "horizon": 3, "episode": 1},
            r"returned by step 1 of episode 2 since",
        ),
    ],
)
def test_the_first_one_is_named(workers, how, text):
    """Where it is, in which step since the reset with which seed, after which action; the cause names the env."""
    with pytest.raises(errors.NanError, match=text) as caught:
        run(workers, **how)
    assert caught.value.__cause__.env_index == 3


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_last_observation_of_an_episode_is_looked_at(mode):
    """Also where the step that ends the episode resets the environment."""
    name = "the last observation" if mode is AutoresetMode.SAME_STEP else r"the observation\['x'\]"
    with pytest.raises(errors.NanError, match=name + r"\[1, 0\] of env 3 is nan, returned by step 2 of episode 1"):
        run(2, mode, where="observation", horizon=2)


def test_nothing_is_looked_at_unless_asked():
    """NaN is data to who does not ask."""
    run(2, where="observation", check_nan=False)
    run(2, where="reward", check_nan=False)


def test_finite_numbers_pass():
    """Over several episodes, in each mode."""
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        run(2, mode, where="", horizon=2, steps=12)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_leaves_that_travel_as_objects_are_left_alone(mode):
    """Ragged values at the end of an episode are no arrays to look into."""
    space = spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32))
    engine = make_engine([functools.partial(SpaceEnv, space, i) for i in range(2)], check_nan=True, autoreset_mode=mode)
    reset(engine, seed=1)
    for _ in range(12):
        engine.send(np.zeros((2, 2), np.float32))
        assert len(engine.recv().observations) == 2
    engine.close()


def test_the_seed_goes_over_with_an_environment():
    """A worker that follows another one, amid rows that the other still writes, knows how its own were seeded."""
    sick = functools.partial(SickEnv, 0, "reward", at=2, horizon=2)
    fns = [functools.partial(Healthy, sick), functools.partial(SickEnv, 1, "")]
    engine = make_engine(fns, num_workers=1, check_nan=True, max_episodes_per_worker=1, adapter=GymnasiumAdapter())
    reset(engine, seed=40)
    for _ in range(3):
        engine.send(np.zeros((2, 2), np.float32))
        engine.recv()
    engine.send(np.zeros((2, 2), np.float32))
    with pytest.raises(errors.NanError, match=r"returned by step 2 of episode 2 since the seed 40") as caught:
        engine.recv()
    assert caught.value.__cause__.env_index == 0
    engine.close()


class Healthy(gymnasium.Wrapper):
    """Its first episode is healthy, as it knows from what a wrapper takes along."""

    def __init__(self, make):
        super().__init__(make())
        self.episodes = 0

    def reset(self, **options):
        self.episodes += 1
        return super().reset(**options)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, 0.0 if self.episodes == 1 else reward, *rest
