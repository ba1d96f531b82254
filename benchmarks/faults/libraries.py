"""The classes under comparison, behind one small interface, so that a reproduction is written once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from faults.case import START_LIMIT, phase


class Step(NamedTuple):
    """What a step returned; the infos as the library gives them."""

    obs: Any
    rewards: Any
    dones: Any
    infos: Any


class Sb3Vec:
    """A Stable-Baselines3 `VecEnv`."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        phase("reset()", START_LIMIT)  # of workers that may still be starting
        if seed is not None:
            self.raw.seed(seed)
        if options:
            self.raw.set_options(options)
        return self.raw.reset()

    def step(self, actions: Any = None) -> Step:
        phase("step()")
        return Step(*self.raw.step(np.zeros(self.raw.num_envs, np.int64) if actions is None else actions))

    def call(self, name: str, *args: Any) -> list[Any]:
        phase(f"env_method({name!r})")
        return list(self.raw.env_method(name, *args))

    def attribute(self, name: str) -> list[Any]:
        phase(f"get_attr({name!r})")
        return list(self.raw.get_attr(name))

    def set_attribute(self, name: str, value: Any) -> None:
        phase(f"set_attr({name!r})")
        self.raw.set_attr(name, value)

    def final(self, step: Step, index: int) -> Any:
        return step.infos[index]["terminal_observation"]

    def info(self, step: Step, index: int, key: str) -> Any:
        return step.infos[index].get(key)

    def close(self) -> None:
        phase("close()")
        self.raw.close()


class GymnasiumVec(Sb3Vec):
    """A Gymnasium `VectorEnv`."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        phase("reset()", START_LIMIT)
        return self.raw.reset(seed=seed, options=options)[0]

    def step(self, actions: Any = None) -> Step:
        phase("step()")
        actions = np.zeros(self.raw.num_envs, np.int64) if actions is None else actions
        obs, rewards, terminations, truncations, infos = self.raw.step(actions)
        return Step(obs, rewards, terminations | truncations, infos)

    def call(self, name: str, *args: Any) -> list[Any]:
        phase(f"call({name!r})")
        return list(self.raw.call(name, *args))

    def final(self, step: Step, index: int) -> Any:
        return step.infos["final_obs"][index]

    def info(self, step: Step, index: int, key: str) -> Any:
        return step.infos[key][index] if step.infos.get(f"_{key}", np.zeros(99, bool))[index] else None


class Library:
    """One of the four classes.

    Attributes:
        name: Of the contender.
        ours: Whether it is fastvec's.
        sb3: Whether its interface is Stable-Baselines3's, else it is Gymnasium's.
    """

    def __init__(self, name: str, class_name: str, *, ours: bool, sb3: bool) -> None:
        self.name, self.class_name, self.ours, self.sb3 = name, class_name, ours, sb3
        self.adapter = Sb3Vec if sb3 else GymnasiumVec

    def make(
        self,
        env_fns: Sequence[Callable[[], Any]],
        method: str | None = None,
        *,
        same_step: bool = False,
        workers: int = 2,
        **options: Any,
    ) -> Any:
        """Environments.

        Args:
            env_fns: One function each.
            method: How processes start; None for what the class does by default.
            same_step: Reset in the same step, where there is a choice.
            workers: So many processes, where there is a choice.
            options: What else the class takes.
        """
        phase("the constructor", START_LIMIT)
        if method:
            options["start_method" if self.sb3 or self.ours else "context"] = method
        if self.ours:
            options.setdefault("num_workers", workers)
        if not self.sb3 and same_step:
            options["autoreset_mode"] = "SameStep"
        return self.adapter(self.load()(env_fns, **options))

    def load(self) -> Any:
        """The class."""
        import gymnasium
        import gymnasium.vector

        if self.ours:
            import fastvec

            return getattr(fastvec, self.class_name)
        if self.sb3:
            import stable_baselines3.common.vec_env

            return getattr(stable_baselines3.common.vec_env, self.class_name)
        return getattr(gymnasium.vector, self.class_name)

    def serial(self, env_fns: Sequence[Callable[[], Any]], *, same_step: bool = False, **options: Any) -> Any:
        """The same environments in the class that steps in this process, which shows what is right."""
        if self.sb3:
            from stable_baselines3.common.vec_env import DummyVecEnv

            return self.adapter(DummyVecEnv(env_fns, **options))
        from gymnasium.vector import SyncVectorEnv

        if same_step:
            options["autoreset_mode"] = "SameStep"
        return self.adapter(SyncVectorEnv(env_fns, **options))


LIBRARIES = {
    library.name: library
    for library in (
        Library("SubprocVecEnv", "SubprocVecEnv", ours=False, sb3=True),
        Library("AsyncVectorEnv", "AsyncVectorEnv", ours=False, sb3=False),
        Library("SharedMemVecEnv", "SharedMemVecEnv", ours=True, sb3=True),
        Library("SharedMemVectorEnv", "SharedMemVectorEnv", ours=True, sb3=False),
    )
}
