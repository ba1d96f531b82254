"""Looking into environments: tracebacks, attributes, debugging, NaN (K)."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from gymnasium import Wrapper

from faults.case import Outcome, attempt, case, name_of, told, verdict
from faults.envs import TinyEnv, raising
from faults.libraries import Library


@case(
    "K1",
    "the traceback of an exception in a worker",
    "tests/test_faults.py::test_this_process_reports_like_a_worker",
    "tests/test_fault_matrix.py::test_a_fault",
)
def traceback_of_a_worker(library: Library) -> Outcome:
    vec = library.make([partial(TinyEnv, 0), partial(TinyEnv, 1, hook=raising(1))])
    vec.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, error = attempt(vec.step)
    line = 'raise ValueError("bad torque")'
    if line in told(error):
        return Outcome("in the exception", True)
    if any(line in str(warning.message) for warning in caught):
        return Outcome("in warnings", True)
    return Outcome("on the worker's stderr at most", False)


def wrapped(env_id: int) -> Any:
    return Wrapper(Wrapper(TinyEnv(env_id)))


@case(
    "K3",
    "`set_attr` through a wrapper, with a list of as many values as environments, and with an array",
    "tests/test_sb3.py::test_an_attribute_is_set_where_it_exists",
    "tests/test_gymnasium.py::test_attributes_are_set_where_they_exist",
)
def set_attribute(library: Library) -> Outcome:
    vec = library.make([partial(wrapped, i) for i in range(2)], "fork")
    vec.reset()
    bases = []
    for value in ([7, 8], np.array([7, 8])):
        vec.set_attribute("goal", value)
        bases.append([np.asarray(goal).tolist() for goal in vec.call("base_goal")])
    # As the interfaces are documented: SB3's has one value for all, Gymnasium's a list or tuple of one for each.
    each = [[7, 8], [7, 8]] if library.sb3 else [7, 8]
    rule = "one value for all" if library.sb3 else "a value for each"
    parts = []
    for what, base, wanted in (("list", bases[0], each), ("array", bases[1], [[7, 8], [7, 8]])):
        said = f" ({rule}, as documented)" if what == "list" and base == wanted else ""
        parts.append((f"{what}: base has {base[0]} and {base[1]}{said}", base == wanted))
    return verdict(*parts)


class Talking(TinyEnv):
    """Says in each step which environment it is, on both streams."""

    def info(self) -> dict[str, Any]:
        for stream in (sys.stdout, sys.stderr):
            print(f"env {self.env_id}", file=stream)
        return {}


def printed(make: Callable[[], Any]) -> list[str]:
    """The lines that reach the descriptors of stdout and stderr while environments are made, stepped and closed."""
    with TemporaryFile("w+b", buffering=0) as file:
        kept = [(fd, os.dup(fd)) for fd in (1, 2)]
        try:
            for fd, _ in kept:
                os.dup2(file.fileno(), fd)
            vec = make()
            vec.reset()
            vec.step()
            vec.close()
        finally:
            for fd, copy in kept:
                os.dup2(copy, fd)
                os.close(copy)
        file.seek(0)
        return file.read().decode().splitlines()


@case(
    "K4",
    "the same environments in this process, for a debugger; and who has printed a line",
    "tests/test_engine.py::test_every_space_and_info_is_the_same_in_workers",
    "tests/core/test_output.py::test_workers_print_with_a_prefix",
)
def in_process(library: Library) -> Outcome:
    env_fns = [partial(Talking, i) for i in range(3)]
    lines, refused = attempt(printed, lambda: library.make(env_fns, worker_output="prefix"))
    if refused:
        lines = printed(lambda: library.make(env_fns))
    workers = ["worker 0, envs 0-1", "worker 0, envs 0-1", "worker 1, env 2"]
    named = sorted(lines) == sorted(f"[{worker}] env {i}" for i, worker in enumerate(workers) for _ in range(2))
    prints = (f"lines {'name their worker on request' if named else 'without a name'}", named)
    if not library.ours:
        return verdict(("another class", False), prints)
    vec, other = (library.make([partial(TinyEnv, i) for i in range(2)], "fork", workers=n) for n in (0, 2))
    vec.reset()
    other.reset()
    here = vec.call("pid") == [os.getpid()] * 2
    equal = repr(vec.step()[:3]) == repr(other.step()[:3])
    return verdict(("an option, with the same results" if here and equal else "differs", here and equal), prints)


class Sick(TinyEnv):
    """Observes NaN in its 7th step."""

    def observe(self) -> Any:
        return np.array([self.env_id, np.nan if self.count == 7 and self.env_id == 3 else self.count], np.float32)


@case(
    "K5",
    "NaN in an observation: which environment, which step, after which action",
    "tests/core/test_nans.py::test_the_first_one_is_named",
)
def not_a_number(library: Library) -> Outcome:
    env_fns = [partial(Sick, i) for i in range(4)]
    vec, refused = attempt(library.make, env_fns, "fork", check_nan=True)
    how = "check_nan=True"
    if refused:
        how, vec = "passed on", library.make(env_fns, "fork")
        if library.sb3:
            from stable_baselines3.common.vec_env import VecCheckNan

            how, vec.raw = "VecCheckNan", VecCheckNan(vec.raw, raise_exception=True)
    vec.reset()
    error = None
    for _ in range(7):
        _, error = attempt(vec.step, np.full(4, 2))
        if error:
            break
    text = told(error)
    wanted = {"env": "env 3" in text, "step": "7" in text, "action": "action" in text and "2" in text}
    missing = [what for what, there in wanted.items() if not there]
    if error is None:
        return Outcome("passed on", False)
    return Outcome(f"{how} {name_of(error)}" + (f", without {', '.join(missing)}" if missing else ""), not missing)
