"""PPO that computes the actions for one half of the environments while the other half steps.

Only :meth:`PipelinedPPO.collect_rollouts` is replaced, with what SB3's ``OnPolicyAlgorithm`` does in it: the same
policy acts during the whole rollout, so the data are as much on-policy as PPO's own. One step of all environments::

    policy     A's actions   B's actions              A's actions               B's actions
    A          ............  steps n ───────────────▶ ............  steps n + 1 ─────────────▶
    B          steps n - 1 ─▶ ............  steps n ─────────────▶  ............  steps n + 1
    this                                              B's step is in: callback, buffer (step n)

where "A steps" is what is queued at the workers: each has the one half's step and, behind it, the other's.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecTransposeImage
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from fastvec.errors import ConfigError
from fastvec.sb3 import SharedMemVecEnv

__all__ = ["PipelinedPPO"]


class _Half:
    """One split, its last observations, and what the policy has said to them.

    Args:
        venv: The split.
        transpose: What is done to its observations.
        observations: The last ones of all environments.
    """

    def __init__(self, venv: SharedMemVecEnv, transpose: Callable[[Any], Any] | None, observations: Any) -> None:
        assert venv.env_ids is not None
        self.venv, self.ids, self._transpose = venv, np.array(venv.env_ids), transpose
        self.observations: Any = (
            {key: value[self.ids] for key, value in observations.items()}
            if isinstance(observations, dict)
            else observations[self.ids]
        )
        # Of state dependent exploration: each half has its own.
        self._noise: tuple[torch.Tensor, torch.Tensor] | None = None

    def draw_noise(self, policy: ActorCriticPolicy) -> None:
        """Explore with other noise from now on."""
        policy.reset_noise(self.venv.num_envs)
        noise = policy.action_dist
        assert isinstance(noise, StateDependentNoiseDistribution)
        self._noise = noise.exploration_mat, noise.exploration_matrices

    def act(self, policy: ActorCriticPolicy, device: torch.device, action_space: spaces.Space[Any]) -> _Said:
        """Choose actions and start the step."""
        if self._noise is not None:
            noise = policy.action_dist
            assert isinstance(noise, StateDependentNoiseDistribution)
            noise.exploration_mat, noise.exploration_matrices = self._noise
        observations = obs_as_tensor(self.observations, device)
        with torch.no_grad(), _unchecked_distributions():
            chosen, values, log_probs = policy(observations)
        actions = clipped = chosen.cpu().numpy()
        if not np.isfinite(actions).all():
            with torch.no_grad():
                policy(observations)  # raises, and says why
        if isinstance(action_space, spaces.Box):
            if policy.squash_output:
                clipped = policy.unscale_action(actions)
            else:
                clipped = np.clip(actions, action_space.low, action_space.high)
        self.venv.step_async(clipped)
        return _Said(actions, clipped, values, log_probs)

    def receive(self) -> VecEnvStepReturn:
        """Finish the step."""
        observations, rewards, dones, infos = self.venv.step_wait()
        if self._transpose is not None:
            observations = self._transpose(observations)
            for index in np.flatnonzero(dones):
                infos[index]["terminal_observation"] = self._transpose(infos[index]["terminal_observation"])
        self.observations = observations
        return observations, rewards, dones, infos

    def drop(self) -> None:
        """Give up a step that is pending: its result is never seen."""
        if self.venv.waiting:
            self.venv._engine.drop()
            self.venv.waiting = False


@contextlib.contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Do without the checks of PyTorch's distributions, a third of what a small policy costs (110 of 310 us)."""
    checks = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(checks)


class _Said(NamedTuple):
    """What the policy says to some observations."""

    actions: NDArray[Any]
    clipped_actions: NDArray[Any]
    values: torch.Tensor
    log_probs: torch.Tensor


class PipelinedPPO(PPO):
    """Stable-Baselines3's PPO, collecting rollouts from two halves of the environments in turn.

    While one half steps, the policy chooses the actions of the other, so that neither the workers nor the learner wait
    for each other. Everything else is PPO: arguments, losses, files, callbacks. The actions are drawn in another order,
    so a run with the same seed is another run.

    The environments must be a :class:`~fastvec.SharedMemVecEnv` itself, with at least two for each worker; wrap single
    environments instead (``make_vec_env`` does so with ``Monitor``). It is split in two at the first rollout, unless it
    has been split in two before, and remains usable as a whole while no rollout is being collected.

    A callback is called once a step, as in PPO, when that step of all environments is complete. By then the first half
    has begun the next one: what the callback asks of the environments is told after that one. Where it ends the
    training, that step is lost.
    """

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """Fill the buffer with experiences of the current policy.

        Args:
            env: The environments.
            callback: Called at each step, and before and after the rollout.
            rollout_buffer: To fill.
            n_rollout_steps: How many steps of each environment.

        Returns:
            Whether all of them were collected; False where the callback has ended it.

        Raises:
            ConfigError: The environments are not a :class:`~fastvec.SharedMemVecEnv` that can be split in two.
        """
        assert self._last_obs is not None, "learn() resets the environments first"
        halves = _halves_of(env, self._last_obs)
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        try:
            return self._collect(env, callback, rollout_buffer, n_rollout_steps, *halves)
        finally:
            for half in halves:
                half.drop()

    def _collect(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
        first: _Half,
        second: _Half,
    ) -> bool:
        # The names of these variables are those of SB3's: callbacks read them.
        n_steps, whole = 0, _Whole((first, second), self.device)
        if self.use_sde:
            first.draw_noise(self.policy)
            second.draw_noise(self.policy)
        callback.on_rollout_start()
        said_to_first = self._act(first, n_steps)
        while n_steps < n_rollout_steps:
            said = said_to_first, self._act(second, n_steps)
            received = [first.receive()]
            if n_steps + 1 < n_rollout_steps:
                said_to_first = self._act(first, n_steps + 1)
            received.append(second.receive())
            new_obs, rewards, dones, infos = map(whole.of, zip(*received, strict=True))
            actions, clipped_actions, values, log_probs = map(whole.of, zip(*said, strict=True))
            obs_tensor = obs_as_tensor(self._last_obs, self.device)  # type: ignore[arg-type]
            self.num_timesteps += env.num_envs
            callback.update_locals(locals())
            if not callback.on_step():
                return False
            self._update_info_buffer(infos, dones)
            n_steps += 1
            if isinstance(self.action_space, spaces.Discrete):
                actions = actions.reshape(-1, 1)
            self._bootstrap(rewards, dones, infos)
            rollout_buffer.add(self._last_obs, actions, rewards, self._last_episode_starts, values, log_probs)  # type: ignore[arg-type]
            self._last_obs, self._last_episode_starts = new_obs, dones
        with torch.no_grad():
            values = self.policy.predict_values(obs_as_tensor(new_obs, self.device))
        rollout_buffer.compute_returns_and_advantage(last_values=values, dones=dones)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _act(self, half: _Half, n_steps: int) -> _Said:
        if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
            half.draw_noise(self.policy)
        return half.act(self.policy, self.device, self.action_space)

    def _bootstrap(self, rewards: NDArray[Any], dones: NDArray[np.bool_], infos: list[dict[str, Any]]) -> None:
        """After a time limit the value of the state in which the episode was cut off belongs to the last reward."""
        for index in np.flatnonzero(dones):
            last = infos[index].get("terminal_observation")
            if last is not None and infos[index].get("TimeLimit.truncated", False):
                with torch.no_grad():
                    value = self.policy.predict_values(self.policy.obs_to_tensor(last)[0])[0]
                rewards[index] += (self.gamma * value).item()  # a product of tensors, rounded as SB3 rounds it


def _halves_of(env: VecEnv, observations: Any) -> tuple[_Half, _Half]:
    """The two splits of the environments, which are split if they have not been before."""
    transpose = env.transpose_observations if isinstance(env, VecTransposeImage) else None
    venv = env.venv if isinstance(env, VecTransposeImage) else env
    if not isinstance(venv, SharedMemVecEnv):
        what = "the environments within it" if isinstance(venv, VecEnvWrapper) else "SB3's own classes"
        raise ConfigError(
            f"PipelinedPPO steps the two halves of a fastvec.SharedMemVecEnv, got a {type(venv).__name__}: it cannot "
            f"split {what}. Make the environments with make_vec_env(..., vec_env_cls=SharedMemVecEnv), which puts a "
            "Monitor around each, and wrap each of them, by its wrapper_class, rather than all at once; or use PPO"
        )
    splits = venv.splits or venv.split(2)
    if len(splits) != 2:
        raise ConfigError(f"PipelinedPPO needs environments that are split in two, got {len(splits)} parts")
    first, second = (_Half(split, transpose, observations) for split in splits)
    return first, second


class _Whole:
    """Puts together what there is of each half, in the order of all environments."""

    def __init__(self, halves: Sequence[_Half], device: torch.device) -> None:
        self._order = np.argsort(np.concatenate([half.ids for half in halves]))
        self._places = self._order.tolist()
        self._tensor_order = torch.from_numpy(self._order).to(device)

    def of(self, parts: Sequence[Any]) -> Any:
        """Arrays, tensors, lists, or dicts of them."""
        one = parts[0]
        if isinstance(one, dict):
            return {key: self.of([part[key] for part in parts]) for key in one}
        if isinstance(one, list):
            flat = list(itertools.chain(*parts))
            return [flat[place] for place in self._places]
        if isinstance(one, torch.Tensor):
            return torch.cat(list(parts))[self._tensor_order]
        return np.concatenate(parts)[self._order]
