"""Steps that return something else than what happened (A1 to A8)."""

from __future__ import annotations

import copy
import os
import tempfile
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from faults.case import Outcome, attempt, case, name_of, verdict, words
from faults.envs import Refilling, Returning, TinyEnv, waiting_for
from faults.libraries import Library, Step

NEXT, SAME, DISABLED = "NextStep", "SameStep", "Disabled"


def numbers(step: Step) -> str:
    """Rewards and steps, which are the same number."""
    return f"rewards {words(step.rewards.tolist())} beside steps {words(step.obs[:, 1].tolist())}"


class Echoing(TinyEnv):
    """Rewards with the action."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, float(action), *rest


@case(
    "A1",
    "a batch with an action too few, then a good one",
    "tests/test_engine.py::test_a_wrong_batch_of_actions_advances_nobody",
    "tests/test_gymnasium.py::test_a_batch_that_does_not_fit_advances_nobody",
)
def too_few_actions(library: Library) -> Outcome:
    vec = library.make([partial(Echoing, i) for i in range(3)], "fork")
    vec.reset()
    _, error = attempt(vec.step, np.zeros(2, np.int64))
    step, failure = attempt(vec.step, np.ones(3, np.int64))
    if failure:
        return Outcome(f"{name_of(error)}, then {name_of(failure)}", False)
    actions, counts = step.rewards.tolist(), step.obs[:, 1].tolist()
    text = f"{name_of(error)}; then rewards for actions {words(actions)} (given: 1,1,1), observations {words(counts)}"
    return Outcome(text, error is not None and actions == counts == [1, 1, 1])


@case(
    "A2",
    "a step that came after its timeout is taken for the next one",
    "tests/test_engine.py::test_a_step_that_timed_out_can_be_received_later",
    "tests/test_gymnasium.py::test_after_a_timeout_the_late_step_is_received",
)
def late_reply(library: Library) -> Outcome:
    if library.sb3 and not library.ours:
        return Outcome("has no timeouts", None)
    flag = os.path.join(tempfile.mkdtemp(), "flag")
    options: dict[str, Any] = {"step_timeout": 1.0} if library.sb3 else {}
    vec = library.make([partial(TinyEnv, i, hook=waiting_for(flag, at=1)) for i in range(2)], "fork", **options)
    vec.reset()
    vec.raw.step_async(np.zeros(2, np.int64))
    wait = vec.raw.step_wait if library.sb3 else partial(vec.raw.step_wait, timeout=1.0)
    _, late = attempt(wait)
    with open(flag, "w"):
        pass
    again, refused = attempt(vec.raw.step_wait)
    step, error = attempt(vec.step)
    second = f"asked again, {name_of(refused)}" if refused else f"asked again, rewards {words(again[1].tolist())}"
    if error:
        return Outcome(f"{name_of(late)}; {second}; then {name_of(error)}", isinstance(late, TimeoutError))
    done = 2 if refused is None else step.obs[0, 1]
    right = isinstance(late, TimeoutError) and all(step.rewards == done) and all(step.obs[:, 1] == done)
    # Had the second call been refused and the first one's results been dropped, the next step would be the second.
    right = right and (refused is None or done == 2)
    return Outcome(f"timeout; {second}; then {numbers(step)}, which is the second", right)


@case(
    "A3",
    "an array that was handed out changes with the next step",
    "tests/test_engine.py::test_what_a_step_returns_is_the_callers",
    "tests/test_gymnasium.py::test_returned_arrays_are_the_callers",
)
def aliasing(library: Library) -> Outcome:
    space = spaces.Dict(a=spaces.Box(0, 9, (2,), np.float32), b=spaces.Discrete(9))
    values = [{"a": np.full(2, i, np.float32), "b": i} for i in range(5)]
    vec = library.make([partial(Returning, space, values, i) for i in range(3)], "fork")
    kept: list[Any] = [vec.reset()]
    copies: list[Any] = copy.deepcopy(kept)
    for _ in range(2):
        step = vec.step()
        kept.append((step.obs, step.rewards, step.dones))
        copies.append(copy.deepcopy(kept[-1]))
    unchanged = repr(kept) == repr(copies)
    kept[-1][1][:] = 77
    kept[-1][0]["a"][:] = 77
    step = vec.step()
    untouched = step.rewards.tolist() == [3, 3, 3] and bool((step.obs["a"] == 3).all())
    return verdict(
        ("earlier batches keep their values" if unchanged else "earlier batches change", unchanged),
        ("writing into one touches no other" if untouched else "writing into one touches later ones", untouched),
    )


@case(
    "A5",
    "the last observation of an episode, of an environment that refills its array",
    "tests/test_sb3.py::test_the_terminal_observation_is_the_last_of_its_episode",
    "tests/test_gymnasium.py::test_the_final_observation_is_the_last_of_its_episode",
)
def terminal_observation(library: Library) -> Outcome:
    vec = library.make([partial(Refilling, i, horizon=2) for i in range(2)], "fork", same_step=True)
    vec.reset()
    vec.step()
    step = vec.step()
    finals = [np.asarray(vec.final(step, i)).tolist() for i in range(2)]
    return Outcome(f"env 1: {[int(v) for v in finals[1]]} (true: [1, 2])", finals == [[0.0, 2.0], [1.0, 2.0]])


def trace(vec: Any, mode: str) -> list[str]:
    """Eight steps in every detail but the dtype of rewards and the order of keys in infos."""
    seen = [repr(vec.reset())]
    for _ in range(8):
        step = vec.step()
        infos = [
            sorted(info.items()) for info in (step.infos if isinstance(step.infos, (list, tuple)) else [step.infos])
        ]
        seen.append(repr((step.obs, step.rewards.tolist(), step.dones, infos)))
        if mode == DISABLED and step.dones.any():
            seen.append(repr(vec.reset(options={"reset_mask": step.dones.copy()})))
    return seen


@case(
    "A6",
    "episodes that end: the same as in the serial class",
    "tests/test_sb3.py::test_500_steps_equal_dummys_bit_for_bit",
    "tests/test_gymnasium.py::test_500_steps_equal_syncs_bit_for_bit",
)
def autoreset(library: Library) -> Outcome:
    modes = ("same step",) if library.sb3 else (NEXT, SAME, DISABLED)
    parts = []
    for mode in modes:
        options = {} if library.sb3 else {"autoreset_mode": mode}
        env_fns = [partial(TinyEnv, i, horizon=3) for i in range(3)]
        vec, serial = library.make(env_fns, "fork", **options), library.serial(env_fns, **options)
        equal = trace(vec, mode) == trace(serial, mode)
        if not library.sb3:
            equal = equal and vec.raw.metadata["autoreset_mode"].value == mode
        parts.append((f"{mode}: {'equal' if equal else 'differs'}", equal))
    return verdict(*parts)


@case(
    "A8",
    "a reset by hand at the end of an episode, then a step",
    "tests/test_gymnasium.py::test_a_reset_after_the_end_clears_the_pending_autoreset",
)
def reset_after_the_end(library: Library) -> Outcome:
    transports = [{}] if library.sb3 else [{"shared_memory": True}, {"shared_memory": False}]
    parts = []
    for options in transports:
        vec = library.make([partial(TinyEnv, i, horizon=2) for i in range(2)], "fork", **options)
        vec.reset()
        vec.step()
        vec.step()
        vec.reset()
        step = vec.step()
        right = step.rewards.tolist() == step.obs[:, 1].tolist() == [1, 1]
        where = "".join(f" with {name}={value}" for name, value in options.items())
        parts.append((f"step {step.obs[0, 1]:g}, reward {step.rewards[0]:g}{where}", right))
    if len({text.partition(" with ")[0] for text, _ in parts}) == 1:
        parts = [(parts[0][0].partition(" with ")[0], all(right for _, right in parts))]
    return verdict(*parts)
