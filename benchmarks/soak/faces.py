"""The three faces, each driven in all the ways that it offers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

import fastvec
from fastvec import baselines
from soak.acts import Act, Face, attempt


class Sb3Face(Face):
    """`fastvec.SharedMemVecEnv`."""

    name = "Stable-Baselines3"

    def options(self) -> dict[str, Any]:
        return {
            "seeding": ["sequential", "spawn"][self.rng.integers(2)],
            "reward_dtype": [np.float32, np.float64][self.rng.integers(2)],
        }

    def make(self, env_fns: list[Any], **options: Any) -> Any:
        return fastvec.SharedMemVecEnv(env_fns, **options)

    def acts(self) -> list[tuple[float, Callable[[], Act]]]:
        return [
            (80, self.step),
            (40, self.step_in_two),
            (12, self.step_with_call),
            (3, self.reset),
            (2, self.dropping_reset),
            (8, self.call),
            (2, self.wrong_actions),
            (2, self.too_much),
        ]

    def first_reset(self) -> Act:
        return self.reset(seeded=True)

    def reset(self, seeded: bool | None = None) -> Act:
        """With or without seeds and options."""
        seed: Any = None
        if seeded or (seeded is None and self.rng.random() < 0.5):
            seed = [self.seed(), [self.seed() for _ in range(self.num_envs)]][self.rng.integers(2)]
        options = [None, {"level": 3}, [{"level": i} for i in range(self.num_envs)]][self.rng.integers(3)]

        def do(vec: Any) -> list[Any]:
            if seed is not None:
                vec.seed(copy.copy(seed))
            if options is not None:
                vec.set_options(copy.deepcopy(options))
            return [attempt(vec.reset), copy.deepcopy(getattr(vec, "reset_infos", None))]

        return Act(f"reset with seed {seed}, options {options}", do, resets=self.all)

    def dropping_reset(self) -> Act:
        actions, reset = self.actions(), self.reset()

        def do(vec: Any) -> list[Any]:
            return [attempt(vec.step_async, actions), *reset.do(vec)]

        return Act(f"step_async, then {reset.name}", do, steps=1, resets=self.all, drops=True)

    def step_in_two(self) -> Act:
        two = super().step_in_two()
        return Act(two.name, lambda vec: [*two.do(vec), copy.deepcopy(vec.reset_infos)], steps=1)

    def step_with_call(self) -> Act:
        actions, call = self.actions(), self.call()

        def do(vec: Any) -> list[Any]:
            return [attempt(vec.step_async, actions), *call.do(vec), attempt(vec.step_wait)]

        return Act(f"step_async, {call.name}, step_wait", do, steps=1, calls=call.calls)

    def call(self) -> Act:
        """Any of those that look into environments."""
        rng = self.rng
        indices = [None, self.anyone(), self.some()][rng.integers(3)]
        whom = self.all if indices is None else frozenset([indices] if isinstance(indices, int) else indices)
        one = self.anyone()
        kinds: list[tuple[str, frozenset[int], Callable[[Any], Any]]] = [
            ("env_method touch", whom, lambda vec: vec.env_method("touch", by=2, indices=indices)),
            ("env_method peek", whom, lambda vec: vec.env_method("peek", 5, indices=indices)),
            ("get_attr tag", whom, lambda vec: vec.get_attr("tag", indices)),
            ("set_attr tag", whom, lambda vec: vec.set_attr("tag", {"value": one}, indices)),
            ("has_attr", self.all, lambda vec: [vec.has_attr("tag"), vec.has_attr("nothing")]),
            ("complain", whom, lambda vec: vec.env_method("complain", one, indices=indices)),
            ("get_attr of nothing", frozenset([one]), lambda vec: vec.get_attr("nothing", one)),
        ]
        name, calls, function = kinds[rng.integers(len(kinds))]
        return Act(f"{name} {indices} {one}", lambda vec: [attempt(function, vec)], calls=calls)

    def calling(self, env_id: int, size: int = 0) -> Act:
        return Act("env_method peek", lambda vec: [attempt(vec.env_method, "peek", size)], calls=self.all)


class GymnasiumFace(Face):
    """`fastvec.SharedMemVectorEnv`."""

    name = "Gymnasium"
    nested_actions = True
    #: Short enough for a slow step to be unfinished.
    POLL = 0.002

    def options(self) -> dict[str, Any]:
        return {
            "seeding": ["sequential", "spawn"][self.rng.integers(2)],
            "autoreset_mode": ["NextStep", "SameStep", "Disabled"][self.rng.integers(3)],
            "copy": bool(self.rng.random() < 0.7),
        }

    def make(self, env_fns: list[Any], **options: Any) -> Any:
        return fastvec.SharedMemVectorEnv(env_fns, **options)

    def acts(self) -> list[tuple[float, Callable[[], Act]]]:
        return [
            (80, self.step),
            (40, self.step_in_two),
            (3, self.reset),
            (5, self.masked_reset),
            (2, self.dropping_reset),
            (10, self.call),
            (2, self.wrong_actions),
            (2, self.too_much),
        ]

    def first_reset(self) -> Act:
        return self.reset(seeded=True)

    def reset(self, seeded: bool | None = None) -> Act:
        """With or without seeds and options."""
        seed = self.any_seed() if seeded is None else self.seed()
        options = [None, {"level": 3}][self.rng.integers(2)]
        return self.resetting(seed, options, self.all)

    def masked_reset(self, whom: frozenset[int] = frozenset()) -> Act:
        """Of some environments, of these at least."""
        chosen = frozenset(self.some()) | whom
        mask = np.isin(np.arange(self.num_envs), list(chosen))
        return self.resetting(self.any_seed(), {"reset_mask": mask, "level": 5}, chosen)

    def resetting(self, seed: Any, options: dict[str, Any] | None, whom: frozenset[int]) -> Act:
        in_two = bool(self.rng.random() < 0.3)

        def do(vec: Any) -> list[Any]:
            if in_two:
                return [attempt(vec.reset_async, seed=seed, options=options), attempt(vec.reset_wait)]
            return [attempt(vec.reset, seed=seed, options=options)]

        return Act(f"reset of {sorted(whom)} with seed {seed}, {options}", do, resets=whom)

    def any_seed(self) -> Any:
        each = [None if self.rng.random() < 0.3 else self.seed() for _ in range(self.num_envs)]
        return [None, self.seed(), each][self.rng.integers(3)]

    def dropping_reset(self) -> Act:
        actions, seed = self.actions(), self.any_seed()

        def do(vec: Any) -> list[Any]:
            return [attempt(vec.step_async, actions), attempt(vec.reset, seed=seed)]

        return Act("step_async, then reset", do, steps=1, resets=self.all, drops=True)

    def polled_step(self) -> Act:
        """A step that is waited for in small pieces."""
        actions = self.actions()

        def do(vec: Any) -> list[Any]:
            sent = attempt(vec.step_async, actions)
            result = attempt(vec.step_wait, timeout=self.POLL)
            while isinstance(result, fastvec.errors.WorkerTimeoutError):
                result = attempt(vec.step_wait, timeout=5 * self.POLL)
            return [sent, result]

        return Act("polled step", do, steps=1, polls=True)

    def call(self) -> Act:
        """Any of those that look into environments."""
        rng = self.rng
        one, each = self.anyone(), [f"tag {i}" for i in range(self.num_envs)]
        in_two = bool(rng.random() < 0.3)
        kinds: list[tuple[str, Callable[[Any], Any]]] = [
            ("call touch", lambda vec: called(vec, "touch", 2)),
            ("call peek", lambda vec: called(vec, "peek", size=5)),
            ("call tag", lambda vec: called(vec, "tag")),
            ("get_attr tag", lambda vec: vec.get_attr("tag")),
            ("set_attr tag", lambda vec: vec.set_attr("tag", {"value": one})),
            ("set_attr tags", lambda vec: vec.set_attr("tag", each)),
            ("set_attr too few", lambda vec: vec.set_attr("tag", [*each, 1])),
            ("complain", lambda vec: called(vec, "complain", one)),
        ]

        def called(vec: Any, *args: Any, **kwargs: Any) -> Any:
            if in_two:
                vec.call_async(*args, **kwargs)
                return vec.call_wait(timeout=60.0)
            return vec.call(*args, **kwargs)

        name, function = kinds[rng.integers(len(kinds))]
        calls = frozenset[int]() if name == "set_attr too few" else self.all
        return Act(f"{name} {one}", lambda vec: [attempt(function, vec)], calls=calls)

    def calling(self, env_id: int, size: int = 0) -> Act:
        return Act("call peek", lambda vec: [attempt(vec.call, "peek", size)], calls=self.all)


class BaselinesFace(Face):
    """`fastvec.baselines.SharedMemVecEnv`."""

    name = "OpenAI Baselines"
    seeded = False

    def options(self) -> dict[str, Any]:
        return {"reward_dtype": [np.float32, np.float64][self.rng.integers(2)]}

    def make(self, env_fns: list[Any], **options: Any) -> Any:
        context = options.pop("start_method", None)
        return baselines.SharedMemVecEnv(env_fns, context=context, **options)

    def acts(self) -> list[tuple[float, Callable[[], Act]]]:
        return [
            (80, self.step),
            (40, self.step_in_two),
            (3, self.first_reset),
            (2, self.dropping_reset),
            (5, lambda: self.calling(0)),
            (2, self.wrong_actions),
            (2, self.too_much),
        ]

    def first_reset(self) -> Act:
        return Act("reset", lambda vec: [attempt(vec.reset)], resets=self.all)

    def dropping_reset(self) -> Act:
        actions = self.actions()

        def do(vec: Any) -> list[Any]:
            return [attempt(vec.step_async, actions), attempt(vec.reset)]

        return Act("step_async, then reset", do, steps=1, resets=self.all, drops=True)

    def calling(self, env_id: int, size: int = 0) -> Act:
        return Act("get_images", lambda vec: [attempt(vec.get_images)], calls=self.all)


FACES: tuple[type[Face], ...] = (Sb3Face, GymnasiumFace, BaselinesFace)
