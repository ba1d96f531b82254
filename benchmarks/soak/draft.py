"""What is drawn before a scenario's life begins: the environments, the face, the options, and when something fails."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastvec._core.config import EngineConfig
from soak.acts import Face
from soak.envs import Plan, later_options
from soak.faces import FACES, BaselinesFace
from soak.spaces import random_action_space, random_object, random_space

#: Seconds in which any single act has to end; a hang is found by `step_timeout` before.
LIMIT = 60.0
#: Seconds after which a step hangs, in scenarios where some do.
STEP_TIMEOUT = 2.0
CLOSE_TIMEOUT = 2.0
#: Whether this version replaces workers that have grown old.
RECYCLES = "max_episodes_per_worker" in inspect.signature(EngineConfig.resolve).parameters
#: About as often at most in one scenario, as each takes the start of a process.
MOST_RECYCLED = 60


@dataclass(frozen=True)
class Draft:
    """All that is fixed for a scenario's life.

    Attributes:
        face: What is driven.
        plans: Of the environments.
        common: Options of both the face with workers and the serial one.
        options: Options of the face with workers.
        length: Steps of its life.
        due: In which of them something fails.
        hangs: Whether environments may hang.
    """

    face: Face
    plans: list[Plan]
    common: dict[str, Any]
    options: dict[str, Any]
    length: int
    due: list[int]
    hangs: bool

    @property
    def restarts(self) -> bool:
        return bool(self.options["on_failure"] == "restart")

    @property
    def recycles(self) -> bool:
        return "max_episodes_per_worker" in self.options

    def __str__(self) -> str:
        plan = self.plans[0]
        return (
            f"{self.face.name}, {len(self.plans)} envs, {plan.observation_space}, {plan.action_space}, {self.common}, "
            f"{self.options}, infos {plan.infos}, horizon {plan.horizon}, old API {plan.old_api}, {self.length} steps"
        )


def draft(rng: np.random.Generator, most_steps: int) -> Draft:
    """A random one, of so many steps at most."""
    kind = FACES[rng.choice(3, p=[0.4, 0.4, 0.2])]
    num_envs, finite = int(rng.integers(1, 13)), bool(rng.random() < 0.3)
    plan = Plan(
        observation_space=random_space(rng) if rng.random() < 0.95 else random_object(rng),
        action_space=random_action_space(rng, nested=kind.nested_actions),
        env_id=0,
        seed=int(rng.integers(2**31)),
        folder=None,
        finite=finite,
        infos=int(rng.choice(3, p=[0.15, 0.35, 0.5])),
        horizon=int(rng.choice([1, 4, 20, 200])),
        old_api=kind is BaselinesFace and bool(rng.random() < 0.5),
    )
    face = kind(rng, num_envs, plan.action_space)
    common = face.options() | {
        "check_nan": finite and bool(rng.random() < 0.5),
        "reset_options": [None, None, "keep", later_options][rng.integers(4)] if kind.seeded else None,
    }
    hangs = bool(rng.random() < 0.15)
    length = min(most_steps, int(rng.choice([150, 400, 1000, 3000], p=[0.3, 0.4, 0.2, 0.1])))
    options = parallel_options(rng, num_envs, hangs=hangs)
    if RECYCLES and rng.random() < 0.25:
        episodes = 2 * length * num_envs // (plan.horizon + 1)
        options["max_episodes_per_worker"] = max(3, episodes // MOST_RECYCLED)
    mean = 4.0 if options["on_failure"] == "restart" else 1.0
    return Draft(
        face=face,
        plans=[dataclasses.replace(plan, env_id=i, seed=plan.seed + i) for i in range(num_envs)],
        common=common,
        options=options,
        length=length,
        due=sorted(int(n) for n in rng.integers(2, length, rng.poisson(mean))),
        hangs=hangs,
    )


def parallel_options(rng: np.random.Generator, num_envs: int, *, hangs: bool) -> dict[str, Any]:
    """Options that have no meaning in the serial engine."""
    options: dict[str, Any] = {
        "start_method": ["fork", "forkserver", "spawn"][rng.choice(3, p=[0.6, 0.35, 0.05])],
        "on_failure": ["raise", "restart"][rng.integers(2)],
        "close_timeout": CLOSE_TIMEOUT,
        "start_timeout": LIMIT,
        "max_restarts": 1000,
    }
    if hangs:
        options |= {"step_timeout": STEP_TIMEOUT, "reset_timeout": 2 * STEP_TIMEOUT}
    most = min(num_envs, 6)
    if rng.random() < 0.5:
        options["num_workers"] = int(rng.integers(1, most + 1))
    else:
        options["in_series"] = int(rng.integers(-(-num_envs // most), num_envs + 1))
    return options
