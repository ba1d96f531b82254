"""Values that change, or are wrong, on their way (A9 to A15)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from faults.case import Outcome, attempt, case, name_of, told, verdict, words
from faults.envs import Returning, Rewarding, TinyEnv
from faults.libraries import Library


def after(vec: Any, steps: int) -> Any:
    vec.reset()
    return [vec.step() for _ in range(steps)]


def first(library: Library, env_fns: list[Callable[[], Any]]) -> Any:
    """The observations of a reset, or what is raised on the way there."""
    return library.make(env_fns, "fork").reset()


@case(
    "A9",
    "rewards that are ints at one step, floats at another, or None",
    "tests/test_sb3.py::test_500_steps_equal_dummys_bit_for_bit",
    "tests/test_engine.py::test_a_reward_that_is_no_number_is_an_error",
)
def reward_types(library: Library) -> Outcome:
    dtypes = [str(step.rewards.dtype) for step in after(library.make([partial(Rewarding, [1, 0.5])] * 2, "fork"), 2)]
    env_fns = [partial(Rewarding, [1.0]), partial(Rewarding, [None])]
    steps, error = attempt(lambda: after(library.make(env_fns, "fork"), 1))
    text = told(error)
    named = "env 1" in text and "NoneType" in text
    none = f"{name_of(error)}{', names env and type' * named}" if error else f"becomes {steps[0].rewards[1]}"
    return verdict(
        (f"dtypes {words(dtypes)}", len(set(dtypes)) == 1 and dtypes[0].startswith("float")), (f"None {none}", named)
    )


@case(
    "A10",
    "the precision of rewards, serial and parallel",
    "tests/test_sb3.py::test_500_steps_equal_dummys_bit_for_bit",
    "tests/test_sb3.py::test_the_reward_dtype_can_be_chosen",
)
def reward_precision(library: Library) -> Outcome:
    env_fns = [partial(Rewarding, [0.1])] * 3
    (here,), (serial,) = after(library.make(env_fns, "fork"), 1), after(library.serial(env_fns), 1)
    right = here.rewards.dtype == serial.rewards.dtype and here.rewards.tobytes() == serial.rewards.tobytes()
    return Outcome(f"{here.rewards.dtype}, in the serial class {serial.rewards.dtype}", right)


@case(
    "A11",
    "float64 observations for a float32 space",
    "tests/test_engine.py::test_a_wider_float_is_rounded_with_one_warning",
)
def observation_dtype(library: Library) -> Outcome:
    obs = first(library, [partial(Returning, spaces.Box(0, 1, (2,), np.float32), [np.full(2, 0.1)])] * 2)
    return Outcome(f"returns {obs.dtype}", obs.dtype == np.float32)


@case(
    "A12",
    "`[0.7, 300.9]` for a uint8 space",
    "tests/test_engine.py::test_an_observation_that_does_not_fit_its_space_is_an_error",
    "tests/core/test_observations.py::test_what_does_not_fit_is_refused_and_nothing_is_written",
)
def lossy_cast(library: Library) -> Outcome:
    env_fns = [partial(Returning, spaces.Box(0, 255, (2,), np.uint8), [np.array([0.7, 300.9])])] * 2
    obs, error = attempt(first, library, env_fns)
    text = told(error)
    if error is None:
        return Outcome(f"returns {obs[1].tolist()} as {obs.dtype}", False)
    return Outcome(name_of(error), all(word in text for word in ("uint8", "float64", "0.7")))


def wrong_shape(library: Library, declared: tuple[int, ...], returned: tuple[int, ...]) -> tuple[str, bool]:
    space = spaces.Box(0, 9, declared, np.float32)
    good, bad = np.zeros(declared, np.float32), np.zeros(returned, np.float32)
    env_fns = [partial(Returning, space, [good]), partial(Returning, space, [bad])]
    if not library.ours:  # the same from all of them, or stacking would notice by chance
        env_fns[0] = env_fns[1]
    obs, error = attempt(first, library, env_fns)
    what = f"{returned} for {declared}: "
    if error is None:
        return f"{what}returns {obs.shape}".replace(", )", ",)"), False
    return what + name_of(error), "env 1" in told(error) and str(declared) in told(error)


@case(
    "A13",
    "observations of a wrong shape, or without a key",
    "tests/test_engine.py::test_an_observation_that_does_not_fit_its_space_is_an_error",
    "tests/core/test_observations.py::test_an_error_in_a_tree_names_the_leaf",
)
def shapes_and_keys(library: Library) -> Outcome:
    space = spaces.Dict(a=spaces.Discrete(3), b=spaces.Discrete(3))
    env_fns = [partial(Returning, space, [{"a": 1, "b": 1}]), partial(Returning, space, [{"a": 1}])]
    _, error = attempt(first, library, env_fns)
    names = all(word in told(error) for word in ("env 1", "'a'", "'b'"))
    return verdict(
        wrong_shape(library, (4,), (1,)),
        wrong_shape(library, (2, 3), (3, 2)),
        (f"key missing: {name_of(error)}{', names env and keys' * names}", names),
    )


@case(
    "A14",
    "factories that return one object, or see one loop variable",
    "tests/test_engine.py::test_one_environment_object_in_two_slots_is_an_error",
    "tests/test_workers.py::test_factories_that_close_over_a_loop_variable_are_warned_of",
)
def one_object(library: Library) -> Outcome:
    env = TinyEnv(0)
    same, error = attempt(lambda: after(library.make([lambda: env] * 4, "fork", workers=1), 2)[-1])
    if error:
        apart = ("one object: " + name_of(error), "instance" in str(error))
    else:
        apart = (f"one object: a copy in each process, steps {words(same.obs[:, 1].tolist())}", True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        obs = library.make([lambda: TinyEnv(i) for i in range(4)], "fork").reset()  # noqa: B023, the fault
    warned = any("loop" in str(warning.message) for warning in caught)
    ids = words(obs[:, 0].tolist())
    return verdict(apart, (f"loop: env ids {ids}, {'with' if warned else 'without'} a warning", warned))


def cartpole(vec: Any, seed: int, steps: int = 60) -> list[Any]:
    """Observations and rewards with the same actions for environments of the same index."""
    rows = [np.asarray(vec.reset(seed=seed))]
    for count in range(steps):
        step = vec.step(np.array([(count // 2) % 2] * vec.raw.num_envs))
        rows += [step.obs, np.asarray(step.rewards, np.float64)]
    return rows


@case(
    "A15",
    "an environment among many: the same as alone with its seed",
    "tests/test_sb3.py::test_on_policy_learning_equals_learning_on_dummy",
    "tests/test_sb3.py::test_500_steps_equal_dummys_bit_for_bit",
)
def alone_and_among_many(library: Library) -> Outcome:
    make = partial(gymnasium.make, "CartPole-v1")
    together = cartpole(library.make([make] * 4, "fork", same_step=True), seed=5)
    equal = True
    for index in range(4):
        alone = cartpole(library.make([make], "fork", same_step=True), seed=5 + index)
        equal = equal and all(np.array_equal(a[0], b[index]) for a, b in zip(alone, together, strict=True))
    return Outcome("60 steps of each of 4 equal" if equal else "traces differ", equal)
