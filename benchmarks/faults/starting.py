"""Start methods, pickling and imports (D)."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from faults.case import JOURNAL, LIMIT, Outcome, attempt, case, name_of, number, phase, told, verdict
from faults.envs import MARK, TinyEnv
from faults.libraries import Library
from faults.processes import ROOT, Ended, run_program


def became(ended: Ended) -> str:
    """What became of a program that should print "worked"."""
    if "worked" in ended.out:
        return "works"
    errors = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception|NotFound))\b", ended.err, re.MULTILINE)
    how = "hangs" if ended.code is None else f"{errors[-1]}" if errors else f"exit code {ended.code}"
    return f"{how}, {number(ended.tracebacks, 'traceback')}"


@case("D1", "a script without `if __name__ == '__main__'`", "tests/test_workers.py::test_scripts_need_no_main_guard")
def no_guard(library: Library) -> Outcome:
    program = """
vec = library.make([TinyEnv] * 2)
vec.reset()
print("worked", vec.step().rewards.tolist(), flush=True)
os._exit(0)
"""
    ended = run_program(program, library, Path(mkdtemp()))
    explained = ended.tracebacks == 1 and "__main__" in ended.err
    return Outcome(became(ended), "worked" in ended.out or explained)


@case(
    "D2",
    "an environment id that only the script has registered, with spawn",
    "tests/test_workers.py::test_registered_environments_are_known_to_workers",
)
def registered_id(library: Library) -> Outcome:
    program = """
import gymnasium
if __name__ == "__main__":
    gymnasium.register("Registered-v0", entry_point="faults.envs:TinyEnv")
    vec = library.make([lambda: gymnasium.make("Registered-v0", disable_env_checker=True)] * 2, "spawn")
    vec.reset()
    print("worked", vec.step().rewards.tolist(), flush=True)
    os._exit(0)
"""
    ended = run_program(program, library, Path(mkdtemp()))
    return Outcome(became(ended), "worked" in ended.out)


@case(
    "D3",
    "environments in place of factories; a factory that holds a lock",
    "tests/test_sb3.py::test_an_environment_in_place_of_a_factory",
    "tests/test_workers.py::test_a_factory_that_cannot_be_pickled_names_the_variable",
)
def no_factory(library: Library) -> Outcome:
    _, error = attempt(lambda: library.make([TinyEnv(), TinyEnv()]).reset())
    said = any(word in str(error) for word in ("function", "factory", "factories"))
    guard = threading.Lock()

    def make() -> TinyEnv:
        assert guard
        return TinyEnv()

    _, other = attempt(lambda: library.make([make] * 2).reset())
    named = "guard" in told(other)
    return verdict(
        (f"environments: {name_of(error)}{', says what is wanted' * said}", said),
        (f"lock: {name_of(other) if other else 'works'}{', names the variable' * named}", named or other is None),
    )


@case("D5", "each start method with what it shares", "tests/test_engine.py::test_every_start_method_gives_the_same")
def start_methods(library: Library) -> Outcome:
    parts = []
    for method in ("fork", "forkserver", "spawn"):
        vec = library.make([partial(TinyEnv, i) for i in range(2)], method)
        vec.reset()
        good = [vec.step().obs.tolist() for _ in range(2)][-1] == [[0, 2], [1, 2]]
        parts.append((f"{method} {'works' if good else 'differs'}", good))
        vec.close()
    return verdict(*parts)


@case(
    "D9",
    "the default start method, when the interpreter's own changes",
    "tests/core/test_config.py::test_the_default_start_method_is_never_fork",
    "tests/test_faults.py::test_the_start_method_of_multiprocessing_is_the_programs",
)
def default_start_method(library: Library) -> Outcome:
    MARK.append("of the program")
    forked = []
    for method in ("fork", "spawn"):
        multiprocessing.set_start_method(method, force=True)
        vec = library.make([TinyEnv] * 2)
        vec.reset()
        forked.append(vec.call("mark")[1] != [])
    return Outcome(f"{'follows' if forked[0] != forked[1] else 'does not follow'} it", forked[0] == forked[1])


def writing(path: str) -> TinyEnv:
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    return TinyEnv()


@case(
    "D10",
    "how often environments are built, and where",
    "tests/test_workers.py::test_environments_are_built_in_the_workers_only",
)
def built_once(library: Library) -> Outcome:
    path = os.path.join(mkdtemp(), "built")
    vec = library.make([partial(writing, path)] * 4)
    vec.reset()
    built = Path(path).read_text().split()
    here = built.count(str(os.getpid()))
    return Outcome(f"{len(built)} for 4, {here} in the program", len(built) == 4 and here == 0)


@case(
    "D12",
    "a class defined in a notebook cell",
    "tests/test_workers.py::test_a_class_defined_in_a_notebook_cell_works",
)
def notebook(library: Library) -> Outcome:
    phase("a notebook", 120 + LIMIT)
    cell = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import os
from faults.envs import TinyEnv
from faults.libraries import LIBRARIES
class CellEnv(TinyEnv):
    pass
for method in ("spawn", "forkserver"):
    vec = LIBRARIES[{library.name!r}].make([CellEnv] * 2, method)
    vec.reset()
    print(method, "worked", vec.step().rewards.tolist(), flush=True)
    vec.close()
os._exit(0)
"""
    environ = {name: value for name, value in os.environ.items() if name != JOURNAL}
    command = [sys.executable, "-m", "IPython", "--no-banner", "-c", cell]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ, check=False)
    except subprocess.TimeoutExpired:
        return Outcome("hangs", False)
    if "No module named IPython" in done.stderr:
        return Outcome("needs IPython", None)
    return verdict(
        *(
            (f"{m} {'works' if f'{m} worked' in done.stdout else 'fails'}", f"{m} worked" in done.stdout)
            for m in ("spawn", "forkserver")
        )
    )
