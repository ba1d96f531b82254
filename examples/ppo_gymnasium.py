"""PPO in one file on Gymnasium's vector interface, with autoreset and time limits treated as they should be.

With Gymnasium's default autoreset mode, NEXT_STEP, the step *after* the end of an episode resets it: its action is
ignored, and what it returns is no transition. Such rows are left out of the losses, and no advantage flows through
them. In return the observation of the step that ends an episode is the episode's last one, so that after a time limit
its value can be bootstrapped from without a look into the infos.

python examples/ppo_gymnasium.py [--env-id CartPole-v1] [--timesteps 100000] [--num-envs 8]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.wrappers.vector import ClipAction, NormalizeObservation, NormalizeReward, RecordEpisodeStatistics
from torch import nn
from torch.distributions import Categorical, Independent, Normal

import fastvec

GAMMA, GAE_LAMBDA, CLIP, ENTROPY, LEARNING_RATE = 0.99, 0.95, 0.2, 0.01, 1e-3
NUM_STEPS, EPOCHS, MINIBATCH = 128, 4, 256


class Agent(nn.Module):
    """A policy, of discrete or continuous actions, and a value."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.continuous = isinstance(action_space, Box)
        self.actor = network(observation_space.shape[0], action_space.shape[0] if self.continuous else action_space.n)
        self.critic = network(observation_space.shape[0], 1)
        self.log_std = nn.Parameter(torch.zeros(action_space.shape))
        with torch.no_grad():
            self.actor[-1].weight.mul_(0.01)  # begin with actions that hardly depend on the observation

    def policy(self, observations):
        outputs = self.actor(observations)
        if self.continuous:
            return Independent(Normal(outputs, self.log_std.exp()), 1)
        return Categorical(logits=outputs)

    def value(self, observations):
        return self.critic(observations).squeeze(-1)


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def collect(venv, agent, observations, ended):
    """A rollout of ``NUM_STEPS`` steps; one observation more than of the rest.

    ``ended[t]`` says whose episode the step before ended: step ``t`` resets those.
    """
    steps = {"observations": [observations], "ended": [ended]}
    for _ in range(NUM_STEPS):
        with torch.no_grad():
            policy = agent.policy(steps["observations"][-1])
            actions = policy.sample()
            log_probs = policy.log_prob(actions)
        observations, rewards, terminations, truncations, _ = venv.step(actions.numpy())
        arrived = {
            "observations": torch.as_tensor(observations),
            "ended": torch.as_tensor(terminations | truncations),
            "actions": actions,
            "log_probs": log_probs,
            "rewards": torch.as_tensor(rewards, dtype=torch.float32),
            "terminations": torch.as_tensor(terminations),
        }
        for key, value in arrived.items():
            steps.setdefault(key, []).append(value)
    return {key: torch.stack(rows) for key, rows in steps.items()}


def advantages_of(steps, values):
    """Generalized advantage estimates. A termination ends the sum and the bootstrap, a truncation only the sum."""
    going_on = ~steps["terminations"]
    deltas = steps["rewards"] + GAMMA * values[1:] * going_on - values[:-1]
    advantages, later = torch.zeros_like(deltas), torch.zeros_like(deltas[0])
    for t in reversed(range(NUM_STEPS)):
        later = advantages[t] = deltas[t] + GAMMA * GAE_LAMBDA * ~steps["ended"][t + 1] * later
    return advantages


def update(agent, optimizer, steps):
    """Some epochs over the rollout."""
    with torch.no_grad():
        values = agent.value(steps["observations"])
    advantages = advantages_of(steps, values)
    real = ~steps["ended"][:-1]  # where an episode had ended before, the step was its reset
    observations, actions = steps["observations"][:-1][real], steps["actions"][real]
    log_probs, returns, advantages = steps["log_probs"][real], (advantages + values[:-1])[real], advantages[real]
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(actions)).split(MINIBATCH):
            policy, chosen = agent.policy(observations[rows]), advantages[rows]
            chosen = (chosen - chosen.mean()) / (chosen.std(correction=0) + 1e-8)
            ratios = (policy.log_prob(actions[rows]) - log_probs[rows]).exp()
            gain = torch.min(ratios * chosen, ratios.clamp(1 - CLIP, 1 + CLIP) * chosen).mean()
            error = (agent.value(observations[rows]) - returns[rows]).square().mean()
            optimizer.zero_grad()
            (0.5 * error - gain - ENTROPY * policy.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--timesteps", type=int, default=100_000)
    parser.add_argument("--num-envs", type=int, default=8)
    options = parser.parse_args()
    # PyTorch's idle threads spin, and would take the CPUs from the workers; so small networks do not need them.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # Without options: as many workers as usable CPUs, each with its share of the environments.
    statistics = RecordEpisodeStatistics(fastvec.make_vec(options.env_id, options.num_envs))
    print(f"{statistics.num_envs} environments on {statistics.unwrapped.num_workers} workers")
    venv = NormalizeReward(NormalizeObservation(statistics), gamma=GAMMA)
    if isinstance(venv.single_action_space, Box):
        venv = ClipAction(venv)
    agent = Agent(venv.single_observation_space, venv.single_action_space)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    rollouts = max(options.timesteps // (NUM_STEPS * options.num_envs), 1)
    observations, ended = torch.as_tensor(venv.reset(seed=0)[0]), torch.zeros(options.num_envs, dtype=torch.bool)
    started = time.perf_counter()
    for rollout in range(rollouts):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - rollout / rollouts)
        steps = collect(venv, agent, observations, ended)
        observations, ended = steps["observations"][-1], steps["ended"][-1]
        update(agent, optimizer, steps)
        if (rollout + 1) * 5 // rollouts > rollout * 5 // rollouts:  # five times in all
            returns = statistics.return_queue
            print(f"{(rollout + 1) * NUM_STEPS * options.num_envs} steps: ", end="")
            print(f"mean return of the last {len(returns)} episodes: {np.mean(returns) if returns else np.nan:.1f}")
    print(f"{rollouts * NUM_STEPS * options.num_envs / (time.perf_counter() - started):.0f} steps a second")
    venv.close()


if __name__ == "__main__":
    main()
