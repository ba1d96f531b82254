"""Random numbers, seeds and options (F)."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from faults.case import Outcome, attempt, case
from faults.envs import TinyEnv
from faults.libraries import Library


class Global(TinyEnv):
    """Observes what it draws from the generators of its process."""

    def observe(self) -> Any:
        return np.array([np.random.random(), random.random()], np.float32)


class Own(TinyEnv):
    """Observes what it draws from its own generator."""

    def observe(self) -> Any:
        return self.np_random.random(2).astype(np.float32)


@case(
    "F1",
    "unseeded environments that draw from global generators, with fork",
    "tests/test_workers.py::test_unseeded_workers_differ",
)
def unseeded(library: Library) -> Outcome:
    obs = library.make([Global] * 4, "fork").reset()
    different = len(np.unique(obs[:, 0])), len(np.unique(obs[:, 1]))
    return Outcome(f"{min(different)} different of 4", different == (4, 4))


def with_option(library: Library, make: Any, options: dict[str, Any]) -> list[tuple[str, Any]]:
    """What `make(vec)` finds without an option and, where the class has it, with the option."""
    env_fns = [partial(Own, horizon=1)] * 4
    found = [("", make(library.make(env_fns, "fork")))]
    vec, refused = attempt(library.make, env_fns, "fork", **options)
    if refused is None:
        ((name, value),) = options.items()
        found.append((f"; with {name}={value!r} ", make(vec)))
    return found


@case(
    "F2",
    "runs with the seeds 0 and 1: streams in common",
    "tests/test_seeding.py::test_spawned_seeds_have_nothing_in_common",
    "tests/test_seeding.py::test_gymnasiums_face_spawns_seeds_on_request",
)
def neighbouring_seeds(library: Library) -> Outcome:
    def shared(vec: Any) -> int:
        first, second = vec.reset(seed=0).tolist(), vec.reset(seed=1).tolist()
        return sum(row in first for row in second)

    found = with_option(library, shared, {"seeding": "spawn"})
    return Outcome("".join(f"{prefix}{count} of 4" for prefix, count in found), found[-1][1] == 0)


@case(
    "F3",
    "samples of the action space after seeding",
    "tests/test_seeding.py::test_sb3s_face_takes_lists_and_spawns_on_request",
    not_yet="by default, where seeding leaves the space alone, as in the classes that are replaced",
)
def action_samples(library: Library) -> Outcome:
    def samples(vec: Any) -> Any:
        vec.reset(seed=3)
        spaces = [vec.raw.action_space] + ([] if library.sb3 else [vec.raw.single_action_space])
        return [[np.asarray(space.sample()).tolist() for _ in range(20)] for space in spaces]

    pairs = zip(*(with_option(library, samples, {"seeding": "spawn"}) for _ in range(2)), strict=True)
    found = [(first[0], first[1] == second[1]) for first, second in pairs]
    text = "".join(f"{prefix}{'' if equal else 'not '}reproducible" for prefix, equal in found)
    return Outcome(text, found[-1][1])


@case(
    "F4",
    "options at automatic resets",
    "tests/test_seeding.py::test_automatic_resets_have_options_on_request",
)
def options_at_autoreset(library: Library) -> Outcome:
    def options(vec: Any) -> Any:
        vec.reset(options={"level": 3})
        vec.step()
        vec.step()
        return vec.attribute("options")[1][:2]

    found = with_option(library, options, {"reset_options": "keep"})
    text = "".join(f"{prefix}first {seen[0]}, next {seen[1]}" for prefix, seen in found)
    return Outcome(text, found[-1][1][1] == {"level": 3})


def trace(vec: Any) -> bytes:
    rows = [np.asarray(vec.reset(seed=11))]
    for count in range(150):
        step = vec.step(np.array([(count // 3 + i) % 2 for i in range(4)]))
        rows += [step.obs, np.asarray(step.rewards, np.float64), step.dones]
    vec.close()
    return b"".join(row.tobytes() for row in rows)


@case(
    "F6",
    "results by start method and number of workers",
    "tests/test_engine.py::test_any_schedule_of_calls_gives_the_same_in_workers",
    "tests/test_engine.py::test_every_start_method_gives_the_same",
)
def reproducible(library: Library) -> Outcome:
    env_fns = [partial(gymnasium.make, "CartPole-v1")] * 4
    grid: list[tuple[str, dict[str, Any]]] = [("fork", {}), ("forkserver", {})]
    if library.ours:
        grid = [(method, {"workers": workers}) for method in ("fork", "forkserver") for workers in (0, 1, 3, 4)]
    wanted = trace(library.serial(env_fns))
    equal = [trace(library.make(env_fns, method, **options)) == wanted for method, options in grid]
    return Outcome(f"{sum(equal)} of {len(grid)} ways equal the serial class", all(equal))
