"""SAC on Humanoid-v5 with 8 environments: as many gradient steps as with one.

An off-policy learner counts ``train_freq`` in calls of ``step()``. With SB3's defaults (``train_freq=1,
gradient_steps=1``) 8 environments bring 8 transitions for each gradient step, an eighth of the training that one
environment gets from as much experience: faster by the clock, worse by the step. ``gradient_steps=-1`` makes as many
gradient steps as transitions came. Then the gradient steps are most of the time, and environments speed up only the
rest: a number in between, such as ``gradient_steps=4``, trades one for the other.

python examples/sac_humanoid.py [--timesteps 1000000] [--n-envs 8] [--gradient-steps -1]
"""

from __future__ import annotations

import argparse
import time

from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env

from fastvec import SharedMemVecEnv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=1_000_000)
    parser.add_argument("--n-envs", type=int, default=8)
    parser.add_argument("--gradient-steps", type=int, default=-1)
    options = parser.parse_args()
    venv = make_vec_env("Humanoid-v5", n_envs=options.n_envs, seed=0, vec_env_cls=SharedMemVecEnv)
    model = SAC(
        "MlpPolicy",
        venv,
        train_freq=1,
        gradient_steps=options.gradient_steps,
        learning_starts=min(10_000, options.timesteps // 2),
        buffer_size=200_000,  # observations are 348 float64: a million of them, twice, would be 5.6 GB
        seed=0,
    )
    started = time.perf_counter()
    model.learn(options.timesteps)
    seconds = time.perf_counter() - started
    venv.close()
    print(f"{model.num_timesteps} transitions from {options.n_envs} environments, {model._n_updates} gradient steps")
    print(f"{model.num_timesteps / seconds:.0f} transitions a second")


if __name__ == "__main__":
    main()
