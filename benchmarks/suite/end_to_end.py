"""Where the time of a training goes: collection, in its parts, and the update.

Stable-Baselines3's PPO and SAC train on each contender, a rollout at a time, in turns. Each environment notes what CPU
time each of its steps took, so that what is waited for can be told from what is computed:

- *environments*: the CPU time of a step of the batch, evenly over as many CPUs as the contender's processes can use;
- *slowest*: by how much the process with the most to do exceeds that;
- *transfer*: what else passes between `step_async()` and the result: messages, wake-ups, copies;
- *inference*: the rest of the collection: the policy, the buffer, callbacks;
- *update*: gradient steps.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from fastvec.sb3 import PipelinedPPO
from suite import ours
from suite.workloads import share_out

__all__ = ["PARTS", "TRAININGS", "Training", "line", "seconds", "times", "title", "train"]

#: Of a collection, and the update.
PARTS = ("environments", "slowest", "transfer", "inference", "update")


@dataclass(frozen=True)
class Training:
    """What is learned, and how.

    Attributes:
        algorithm: "PPO" or "SAC".
        env_id: Of Gymnasium.
        n: Environments.
        steps: Of the batch, in a rollout; before an update with PPO, with an update after each with SAC.
        threads: PyTorch's; None for its default.
    """

    algorithm: str
    env_id: str
    n: int
    steps: int
    threads: int | None
    workers: int = 2


#: What the suite trains.
TRAININGS = (
    Training("PPO", "BipedalWalker-v3", 32, 64, 1),
    Training("PPO", "BipedalWalker-v3", 4, 512, 1),
    Training("PPO", "BipedalWalker-v3", 4, 512, None),
    Training("SAC", "HalfCheetah-v5", 4, 100, 1),
)


class NotingEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Notes the CPU time of each step, resets that follow from it included."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.spent: list[float] = []

    def step(self, action: Any) -> Any:
        began = time.thread_time()
        result = self.env.step(action)
        self.spent.append(time.thread_time() - began)
        return result

    def reset(self, **arguments: Any) -> Any:
        began = time.thread_time()
        result = self.env.reset(**arguments)
        if self.spent:
            self.spent[-1] += time.thread_time() - began
        return result

    def take_spent(self) -> list[float]:
        """The notes since the last call."""
        spent, self.spent = self.spent, []
        return spent


def noting_env(env_id: str) -> NotingEnv:
    return NotingEnv(gymnasium.make(env_id))


class ClockedVecEnv(VecEnvWrapper):
    """Adds up the time between the call of a step and its result."""

    seconds = 0.0

    def reset(self) -> Any:
        return self.venv.reset()

    def step_async(self, actions: Any) -> None:
        self._began = time.perf_counter()
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        result = self.venv.step_wait()
        self.seconds += time.perf_counter() - self._began
        return result


def clocked(algorithm: type[Any]) -> type[Any]:
    """The same learner, which adds up what its collections and its updates take."""

    class Clocked(algorithm):  # type: ignore[misc]
        clock: Counter[str]

        def collect_rollouts(self, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return super().collect_rollouts(*args, **kwargs)
            finally:
                self.clock["collection"] += time.perf_counter() - began  # type: ignore[assignment]

        def train(self, *args: Any, **kwargs: Any) -> None:
            began = time.perf_counter()
            super().train(*args, **kwargs)
            self.clock["update"] += time.perf_counter() - began  # type: ignore[assignment]

    return Clocked


@dataclass
class Run:
    """One contender's training: seconds of each rollout, by part; "collection" is the sum of all but the update."""

    name: str
    parts: dict[str, list[float]] = field(default_factory=dict)

    def add(self, found: dict[str, float]) -> None:
        for part, seconds in found.items():
            self.parts.setdefault(part, []).append(seconds)


class Learner:
    """A contender with its environments and its model."""

    def __init__(self, name: str, training: Training, make: Callable[..., Any], processes: int, algorithm: Any) -> None:
        self.run = Run(name)
        self._training, self._slices = training, share_out(training.n, processes)
        self._cpus = min(processes, len(os.sched_getaffinity(0)))
        self.venv = make([partial(noting_env, training.env_id)] * training.n)
        # A learner that steps halves needs the environments themselves.
        self._is_pipelined = algorithm is PipelinedPPO
        self._clock = self.venv if self._is_pipelined else ClockedVecEnv(self.venv)
        self.model = clocked(algorithm)("MlpPolicy", self._clock, seed=0, device="cpu", **self._options())

    def _options(self) -> dict[str, Any]:
        if self._training.algorithm == "SAC":
            return {"learning_starts": self._training.n, "buffer_size": 100_000}
        return {"n_steps": self._training.steps}

    def rollout(self, turn: int) -> dict[str, float]:
        """Seconds of each part."""
        set_random_seed(turn)  # the generators are global: the same numbers for each
        self.venv.env_method("take_spent")
        self.model.clock = Counter()
        if not self._is_pipelined:
            self._clock.seconds = 0.0
        self.model.learn(self._training.steps * self._training.n, reset_num_timesteps=False)
        collection, update = self.model.clock["collection"], self.model.clock["update"]
        found = {"collection": collection, "update": update}
        if self._is_pipelined:
            return found
        environments, slowest = self._spent()
        stepping = self._clock.seconds
        return found | {
            "environments": environments,
            "slowest": slowest,
            "transfer": max(0.0, stepping - environments - slowest),
            "inference": collection - stepping,
        }

    def _spent(self) -> tuple[float, float]:
        """CPU time of the steps, evenly over the CPUs, and what the busiest process of each step had beyond that."""
        spent = np.array(self.venv.env_method("take_spent")).T  # (steps, envs)
        shares = np.stack([spent[:, env_ids.start : env_ids.stop].sum(1) for env_ids in self._slices], 1)
        even = shares.sum(1) / self._cpus
        return float(even.sum()), float(np.maximum(shares.max(1) - even, 0).sum())


def learners(training: Training) -> list[tuple[str, Callable[..., Any], int, Any]]:
    """Name, class, processes and algorithm of each contender."""
    algorithm = {"PPO": PPO, "SAC": SAC}[training.algorithm]
    shared = partial(ours.SharedMemVecEnv, num_workers=training.workers, start_method="fork")
    found = [
        ("DummyVecEnv", DummyVecEnv, 1, algorithm),
        ("SubprocVecEnv", partial(SubprocVecEnv, start_method="fork"), training.n, algorithm),
        ("SharedMemVecEnv", shared, training.workers, algorithm),
        ("SharedMemVecEnv tuned", partial(shared, **ours.TUNED), training.workers, algorithm),
    ]
    if training.algorithm == "PPO" and training.n >= 2 * training.workers:
        found.append(("PipelinedPPO", shared, training.workers, PipelinedPPO))
    return found


def train(training: Training, rounds: int, tell: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Seconds of each part of a rollout, for each contender, as medians over the rounds; the first one warms up."""
    threads = torch.get_num_threads()
    torch.set_num_threads(training.threads or threads)
    try:
        with contextlib.ExitStack() as stack:
            company = []
            for name, make, processes, algorithm in learners(training):
                tell(f"builds {name}")
                company.append(Learner(name, training, make, processes, algorithm))
                stack.callback(company[-1].venv.close)
            for turn in range(rounds + 1):
                for learner in company:
                    tell(f"{learner.run.name} trains, {turn} of {rounds}")
                    found = learner.rollout(turn)
                    if turn:
                        learner.run.add(found)
            runs = {one.run.name: one.run.parts for one in company}
    finally:
        torch.set_num_threads(threads)
    return asdict(training) | {"runs": runs}


def title(found: dict[str, Any]) -> str:
    """What was trained."""
    threads = "1 torch thread" if found["threads"] == 1 else "torch's own number of threads"
    return f"{found['algorithm']}, {found['env_id']}, {found['n']} environments, {threads}"


def line(found: dict[str, Any]) -> str:
    """A training in a line: seconds of a collection, by contender."""
    parts = ", ".join(f"{name} {seconds(found, name, 'collection'):.3f}" for name in found["runs"])
    return f"{title(found)}: {parts} s a collection"


def seconds(found: dict[str, Any], name: str, part: str) -> float:
    """Of a rollout, the median."""
    return median(found["runs"][name][part])


def times(found: dict[str, Any], name: str, other: str, part: str = "collection") -> float:
    """How many times as fast as another that was trained, too, round by round."""
    pairs = zip(found["runs"][name][part], found["runs"][other][part], strict=True)
    return median(theirs / own for own, theirs in pairs)
