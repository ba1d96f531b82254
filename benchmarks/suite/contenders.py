"""Who is compared: the limits, the classes that fastvec replaces, ours, and the peers that are installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from suite import limits, ours, peers
from suite.stepper import Stepper, Turn
from suite.workloads import Plan

__all__ = ["CONTENDERS", "MOST_PROCESSES", "Contender", "missing"]

#: The most environments for those who need a process for each.
MOST_PROCESSES = 128


@dataclass(frozen=True)
class Contender:
    """One row of every comparison.

    Attributes:
        name: What it is called.
        make: Builds it, seeded and reset by :meth:`~suite.stepper.Stepper.restart` only.
        module: What must be importable.
        a_process_each: Whether it needs a process for each environment.
        refuses: Why it cannot do a plan, or "".
        not_compared: Why its observations are not compared with those of `DummyVecEnv`, or "".
        peer: Whether it may fail; that is then a result.
        restless: Seconds that its idle processes keep their CPUs busy after a step.
    """

    name: str
    make: Callable[[Plan], Stepper]
    module: str = "fastvec"
    a_process_each: bool = False
    refuses: Callable[[Plan], str] = lambda _: ""
    not_compared: str = ""
    peer: bool = False
    restless: float = 0.0

    @property
    def absent(self) -> str:
        """Why it cannot take part at all, or ""."""
        try:
            importlib.import_module(self.module)
        except Exception as error:  # what an import of another library may raise is not for us to know
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return ""

    def why_not(self, plan: Plan) -> str:
        """Why it does not take part in a plan, or ""."""
        if self.a_process_each and plan.n > MOST_PROCESSES:
            return f"needs a process for each environment: not tried above {MOST_PROCESSES}"
        return self.absent or self.refuses(plan)


class VecEnvStepper:
    """Stable-Baselines3's interface: seeds count up from 0."""

    def __init__(self, make: Callable[..., Any], plan: Plan) -> None:
        self._plan, self.venv = plan, make(plan.env_fns)

    def restart(self) -> Any:
        self.venv.seed(0)
        return self.venv.reset()

    def advance(self, first: int, steps: int) -> Turn:
        window, step = self._plan.window(first, steps), self.venv.step
        began = perf_counter()
        for actions in window:
            result = step(actions)
        return Turn(perf_counter() - began, result[0])

    def close(self) -> None:
        self.venv.close()


class VectorEnvStepper(VecEnvStepper):
    """Gymnasium's interface."""

    def restart(self) -> Any:
        return self.venv.reset(seed=0)[0]


def sb3(cls: Callable[..., Any], plan: Plan, **options: Any) -> Stepper:
    return VecEnvStepper(partial(cls, **options), plan)


def subproc(plan: Plan) -> Stepper:
    return sb3(SubprocVecEnv, plan, start_method=plan.start_method)


def shared(plan: Plan, **options: Any) -> Stepper:
    return sb3(ours.SharedMemVecEnv, plan, num_workers=plan.workers, start_method=plan.start_method, **options)


def tuned(plan: Plan) -> Stepper:
    return shared(plan, **ours.TUNED)


def serial(plan: Plan) -> Stepper:
    return sb3(ours.SharedMemVecEnv, plan, num_workers=0)


def vector(cls: Callable[..., Any], plan: Plan, **options: Any) -> Stepper:
    # The mode of Stable-Baselines3's classes: all take the same steps.
    return VectorEnvStepper(partial(cls, autoreset_mode=AutoresetMode.SAME_STEP, **options), plan)


def sync(plan: Plan) -> Stepper:
    return vector(SyncVectorEnv, plan)


def asynchronous(plan: Plan) -> Stepper:
    return vector(AsyncVectorEnv, plan, context=plan.start_method)


def shared_vector(plan: Plan) -> Stepper:
    return vector(ours.SharedMemVectorEnv, plan, num_workers=plan.workers, start_method=plan.start_method)


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("free limit", limits.free),
        Contender("lockstep limit", limits.lockstep),
        Contender("DummyVecEnv", partial(sb3, DummyVecEnv)),
        Contender("SubprocVecEnv", subproc, a_process_each=True),
        Contender("SyncVectorEnv", sync),
        Contender("AsyncVectorEnv", asynchronous, a_process_each=True),
        Contender(
            "PufferLib",
            peers.PufferStepper,
            module="pufferlib.vector",
            refuses=peers.puffer_refuses,
            not_compared="resets in the step after the last one of an episode",
            peer=True,
            restless=0.6,
        ),
        Contender("Tianshou", peers.TianshouStepper, module="tianshou.env", a_process_each=True, peer=True),
        Contender("TorchRL", peers.TorchRLStepper, module="torchrl.envs", a_process_each=True, peer=True),
        Contender(
            "EnvPool",
            peers.EnvPoolStepper,
            module="envpool",
            refuses=peers.envpool_refuses,
            not_compared="its environments are others of the same name, in C++",
            peer=True,
        ),
        Contender("SharedMemVecEnv", shared),
        Contender("SharedMemVecEnv tuned", tuned, refuses=ours.tuned_refuses),
        Contender("SharedMemVecEnv serial", serial),
        Contender("SharedMemVectorEnv", shared_vector),
        Contender("SharedMemVecEnv two splits", ours.SplitStepper, refuses=ours.split_refuses),
    )
}


def missing(names: Iterable[str]) -> dict[str, str]:
    """Those of some contenders that cannot take part at all, and why."""
    return {name: absent for name in names if (absent := CONTENDERS[name].absent)}
