"""PipelinedPPO: what it collects is what SB3's classes would have given for the same actions, and it learns."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from test_engine import assert_same
from test_splits import counting, without_clock

pytest.importorskip("stable_baselines3")

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize, VecTransposeImage

from fastvec import SharedMemVecEnv, errors
from fastvec.sb3 import PipelinedPPO

WAYS = {
    "serial": {"num_workers": 0},
    "2 workers": {"num_workers": 2, "start_method": "fork"},
    "3 workers": {"num_workers": 3, "start_method": "fork"},
}


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of torch that spin take the CPUs from workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cartpole(n_envs):
    return make_vec_env(
        "CartPole-v1", n_envs=n_envs, seed=0, vec_env_cls=SharedMemVecEnv, vec_env_kwargs=WAYS["2 workers"]
    )


class Recorder(BaseCallback):
    """Keeps what a callback sees of each step."""

    def __init__(self):
        super().__init__()
        self.steps, self.rollouts = [], 0

    def _on_rollout_start(self):
        self.rollouts += 1

    def _on_step(self):
        seen = {"obs_tensor", "values", "log_probs", "new_obs", "env", "rollout_buffer", "n_steps", "n_rollout_steps"}
        assert seen <= set(self.locals)
        rewards = self.locals["rewards"].copy()  # to which a time limit's value is added later
        self.steps.append(
            (self.locals["clipped_actions"], rewards, self.locals["dones"], without_clock(self.locals["infos"]))
        )
        return True


class ShortEnv(gymnasium.Env):
    """Observes noise of its seed; episodes of a few steps end in turn by termination and by a time limit."""

    def __init__(self, kind, env_id):
        box = spaces.Box(-1, 1, (3,), np.float32)
        image = spaces.Box(0, 255, (36, 36, 3), np.uint8)
        self.observation_space = {"box": box, "dict": spaces.Dict(a=box, b=spaces.Discrete(3)), "image": image}[
            "box" if kind in ("discrete", "multi") else kind
        ]
        self.action_space = {"discrete": spaces.Discrete(4), "multi": spaces.MultiDiscrete([2, 3])}.get(
            kind, spaces.Box(-0.1, 0.1, (2,), np.float32)
        )
        self.env_id, self.episode = env_id, 0

    def observe(self):
        if isinstance(self.observation_space, spaces.Dict):
            return {"a": self.np_random.random(3, np.float32), "b": int(self.np_random.integers(3))}
        if self.observation_space.dtype == np.uint8:
            return self.np_random.integers(0, 256, (36, 36, 3), np.uint8)
        return self.np_random.random(3, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.episode += 1
        return self.observe(), {}

    def step(self, action):
        self.count += 1
        done = self.count == 3 + self.env_id % 3
        limit = done and self.episode % 2 == 0
        return self.observe(), float(np.sum(action)) + self.count, done and not limit, limit, {}


def values_of(policy, observations):
    """What the policy holds of observations, one at a time."""
    with torch.no_grad():
        return np.array(
            [policy.predict_values(policy.obs_to_tensor(one)[0]).item() for one in observations], np.float32
        )


POLICIES = {"dict": "MultiInputPolicy", "image": "CnnPolicy"}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("kind", ["box", "discrete", "multi", "dict", "image"])
def test_the_buffer_holds_what_dummy_gives_for_the_same_actions(kind, name):
    """Observations, rewards with the values of time limits, episode starts and infos bit for bit, over two rollouts."""
    fns = [functools.partial(ShortEnv, kind, i) for i in range(7)]
    venv = SharedMemVecEnv(fns, **WAYS[name])
    dummy = DummyVecEnv(fns)
    n_steps = 13
    model = PipelinedPPO(
        POLICIES.get(kind, "MlpPolicy"), venv, n_steps=n_steps, batch_size=91, n_epochs=1, seed=3, device="cpu"
    )
    dummy.seed(3)
    observations = dummy.reset()
    starts = np.ones(7, bool)
    if kind == "image":
        assert isinstance(model.env, VecTransposeImage)
    _, callback = model._setup_learn(10**6, recorder := Recorder())
    for rollout in range(2):
        recorder.steps.clear()
        assert model.collect_rollouts(model.env, callback, model.rollout_buffer, n_steps)
        buffer = model.rollout_buffer
        assert buffer.full
        assert model.num_timesteps == 7 * n_steps * (rollout + 1)
        for step, (actions, rewards, dones, infos) in enumerate(recorder.steps):
            theirs = dummy.step(actions)
            for key in observations if kind == "dict" else [None]:
                wanted = observations if key is None else observations[key]
                wanted = wanted.transpose(0, 3, 1, 2) if kind == "image" else wanted
                got = (buffer.observations if key is None else buffer.observations[key])[step]
                assert got.reshape(-1).tobytes() == wanted.astype(got.dtype).reshape(-1).tobytes()
            assert rewards.tobytes() == theirs[1].tobytes()
            assert dones.tolist() == theirs[2].tolist()
            assert buffer.episode_starts[step].tolist() == starts.astype(np.float32).tolist()
            for index, info in enumerate(theirs[3]):
                assert infos[index]["TimeLimit.truncated"] == info["TimeLimit.truncated"]
                assert ("terminal_observation" in infos[index]) == ("terminal_observation" in info)
            expected = theirs[1].copy()
            for index in np.flatnonzero(dones):
                if infos[index]["TimeLimit.truncated"]:
                    (value,) = values_of(model.policy, [infos[index]["terminal_observation"]])
                    expected[index] += np.float32(model.gamma) * value
            assert np.allclose(buffer.rewards[step], expected, rtol=1e-6, atol=1e-6)
            observations, starts = theirs[0], theirs[2]
        assert model._last_episode_starts.tolist() == starts.tolist()
        check_values(model, n_steps)
        model.train()
    assert recorder.rollouts == 2
    venv.close()
    dummy.close()


def check_values(model, n_steps):
    """The buffer's values, log-probabilities and advantages follow from its observations and actions."""
    buffer, policy = model.rollout_buffer, model.policy
    for step in range(n_steps):
        got = buffer.observations
        observations = {key: got[key][step] for key in got} if isinstance(got, dict) else got[step]
        if isinstance(observations, dict):
            observations["b"] = observations["b"].reshape(-1)
        tensor = policy.obs_to_tensor(observations)[0]
        actions = torch.as_tensor(buffer.actions[step])
        if isinstance(model.action_space, spaces.Discrete):
            actions = actions.long().flatten()
        with torch.no_grad():
            values, log_probs, _ = policy.evaluate_actions(tensor, actions)
        assert np.allclose(values.numpy().flatten(), buffer.values[step], atol=1e-5)
        assert np.allclose(log_probs.numpy(), buffer.log_probs[step], atol=1e-4)
    with torch.no_grad():
        last = policy.predict_values(policy.obs_to_tensor(model._last_obs)[0])
    before = buffer.advantages.copy()
    buffer.compute_returns_and_advantage(last, model._last_episode_starts)
    assert np.allclose(before, buffer.advantages, atol=1e-5)


def test_with_a_policy_without_noise_it_collects_what_ppo_collects():
    """The same actions, so the same observations, rewards and episode starts as PPO's own, bit for bit."""
    buffers = []
    for cls in (PPO, PipelinedPPO):
        with cartpole(6) as venv:
            model = cls("MlpPolicy", venv, n_steps=64, seed=0, device="cpu")
            forward = model.policy.forward
            model.policy.forward = functools.partial(forward, deterministic=True)
            _, callback = model._setup_learn(10**6, recorder := Recorder())
            for _ in range(2):
                model.collect_rollouts(model.env, callback, model.rollout_buffer, 64)
            buffers.append((model.rollout_buffer, recorder.steps, list(model.ep_info_buffer), model.num_timesteps))
    (plain, theirs, episodes, count), (piped, ours, ours_episodes, our_count) = buffers
    for name in ("observations", "rewards", "episode_starts", "actions"):
        assert getattr(plain, name).tobytes() == getattr(piped, name).tobytes()
    assert np.allclose(plain.advantages, piped.advantages, atol=1e-4)
    assert np.allclose(plain.log_probs, piped.log_probs, atol=1e-5)
    assert count == our_count
    assert [e["r"] for e in episodes] == [e["r"] for e in ours_episodes]
    assert_same([infos for *_, infos in ours], [infos for *_, infos in theirs])


@pytest.mark.parametrize("frequency", [-1, 4])
def test_state_dependent_exploration(frequency):
    """Each environment has noise of its own, drawn as often as asked for."""
    fns = [functools.partial(ShortEnv, "box", i) for i in range(5)]
    with SharedMemVecEnv(fns, **WAYS["2 workers"]) as venv:
        model = PipelinedPPO(
            "MlpPolicy", venv, n_steps=8, batch_size=40, use_sde=True, sde_sample_freq=frequency, seed=0, device="cpu"
        )
        drawn = []
        reset_noise = model.policy.reset_noise

        def counted(n_envs):
            drawn.append(n_envs)
            reset_noise(n_envs)
            matrices = model.policy.action_dist.exploration_matrices
            assert len({tuple(m.flatten().tolist()) for m in matrices}) == n_envs

        model.policy.reset_noise = counted
        model.learn(40)
        assert drawn == [3, 2] * (1 if frequency < 0 else 3)


def test_it_learns_cartpole():
    """A policy that has learned nothing gets 22."""
    with cartpole(8) as venv:
        options = {"n_steps": 64, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "learning_rate": 1e-3}
        model = PipelinedPPO("MlpPolicy", venv, **options, seed=0, device="cpu")
        model.learn(16_384)
        mean, _ = evaluate_policy(model, venv, n_eval_episodes=16)
        assert mean > 100


class Stopping(BaseCallback):
    """Asks the environments at each step, and ends the training, or fails, at one."""

    def __init__(self, at, error=None):
        super().__init__()
        self.at, self.error, self.told = at, error, []

    def _on_step(self):
        self.told.append(self.training_env.get_attr("count"))
        if self.num_timesteps < self.at:
            return True
        if self.error is not None:
            raise self.error
        return False


def test_callbacks_can_ask_the_environments_and_end_the_training():
    """They are told after the step that the first half has begun; afterwards everything can be used."""
    with SharedMemVecEnv(counting(4, None), **WAYS["2 workers"]) as venv:
        model = PipelinedPPO("MlpPolicy", venv, n_steps=8, batch_size=32, device="cpu")
        model.learn(32, callback=(stopping := Stopping(12)))
        assert stopping.told == [[2, 1, 2, 1], [3, 2, 3, 2], [4, 3, 4, 3]]
        assert venv.step(np.zeros(4, np.int64))[1].tolist() == [5, 4, 5, 4]
        with pytest.raises(KeyError, match="mine"):
            model.learn(32, callback=Stopping(12, KeyError("mine")))
        model.learn(64, callback=(going := Stopping(10**9)))
        assert len(going.told) == 16
        assert [told[0] - told[1] for told in going.told] == [*[1] * 7, 0] * 2  # nothing is pending at the end


def test_a_model_is_saved_and_loaded(tmp_path):
    """Without its environments; it goes on with those that have been split before."""
    with SharedMemVecEnv(counting(4), **WAYS["2 workers"]) as venv:
        model = PipelinedPPO("MlpPolicy", venv, n_steps=8, batch_size=32, device="cpu")
        model.learn(32)
        model.save(tmp_path / "model.zip")
        again = PipelinedPPO.load(tmp_path / "model.zip", env=venv, device="cpu")
        again.learn(32, reset_num_timesteps=False)
        assert again.num_timesteps == 64
        plain = PPO.load(tmp_path / "model.zip", env=venv, device="cpu")
        plain.learn(32)


def test_what_cannot_be_pipelined_is_refused_with_the_way_out():
    """Other classes, wrappers around all environments, one environment a worker, more than two parts."""
    dummy = DummyVecEnv(counting(4))
    with pytest.raises(errors.ConfigError, match=r"got a DummyVecEnv: it cannot split SB3's own classes\. Make"):
        PipelinedPPO("MlpPolicy", dummy, n_steps=8, batch_size=32, device="cpu").learn(32)
    dummy.close()
    with (
        SharedMemVecEnv(counting(4), **WAYS["2 workers"]) as venv,
        pytest.raises(errors.ConfigError, match="got a VecNormalize: it cannot split the environments within it"),
    ):
        PipelinedPPO("MlpPolicy", VecNormalize(venv), n_steps=8, batch_size=32, device="cpu").learn(32)
    with (
        SharedMemVecEnv(counting(2), **WAYS["2 workers"]) as venv,
        pytest.raises(errors.ConfigError, match="in_series must be at least 2"),
    ):
        PipelinedPPO("MlpPolicy", venv, n_steps=16, batch_size=32, device="cpu").learn(32)
    with SharedMemVecEnv(counting(6), **WAYS["2 workers"]) as venv:
        venv.split(3)
        with pytest.raises(errors.ConfigError, match="split in two, got 3 parts"):
            PipelinedPPO("MlpPolicy", venv, n_steps=16, batch_size=32, device="cpu").learn(32)


def test_the_learner_is_a_name_of_the_module():
    """Found on demand, listed, and others are refused."""
    import fastvec.sb3

    assert "PipelinedPPO" in fastvec.sb3.__all__
    with pytest.raises(AttributeError, match="has no attribute 'PipelinedA2C'"):
        _ = fastvec.sb3.PipelinedA2C
    assert issubclass(PipelinedPPO, PPO)
    assert [name for name in vars(PipelinedPPO) if not name.startswith("_")] == ["collect_rollouts"]
