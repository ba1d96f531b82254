"""Environments that raise, die or never answer (B)."""

from __future__ import annotations

import os
import re
import signal
import threading
import warnings
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from faults import envs
from faults.case import LIMIT, Outcome, attempt, case, name_of, told, verdict
from faults.envs import TinyEnv, exiting, killing, raising, sleeping, taking_the_lock
from faults.libraries import Library
from faults.processes import descendants, run_program, wait_until


def steps_until_it_fails(vec: Any) -> BaseException | None:
    """What the third step raises; the first two are good."""
    vec.reset()
    vec.step()
    vec.step()
    return attempt(vec.step)[1]


@case(
    "B1",
    "an environment raises: what the program is told",
    "tests/test_sb3.py::test_calls_after_an_error",
    "tests/test_faults.py::test_this_process_reports_like_a_worker",
)
def exception_in_a_step(library: Library) -> Outcome:
    vec = library.make([partial(TinyEnv, 0), partial(TinyEnv, 1, hook=raising())])
    vec.reset()
    pids = vec.call("pid")
    vec.step()
    vec.step()
    _, error = attempt(vec.step)
    text = told(error)
    wanted = {
        "type": isinstance(error, ValueError),
        "text": "bad torque" in text,
        "env": "env 1" in text,
        "pid": str(pids[1]) in text,
        "command": "step" in text,
        "traceback": "Traceback" in text and "raise ValueError" in text,
        "cause": error is not None and error.__cause__ is not None,
    }
    missing = [what for what, there in wanted.items() if not there]
    others = wait_until(lambda: not descendants(os.getpid()), 3.0)
    return verdict(
        (f"{name_of(error)}" + (f", without {', '.join(missing)}" if missing else " with everything"), not missing),
        ("the other worker is ended" if others else "the other worker runs on", others),
    )


def failing_constructor(env_id: int) -> TinyEnv:
    if env_id == 1:
        raise FileNotFoundError("no level file")
    return TinyEnv(env_id)


@case("B2", "with fork, a worker that is not the first one dies", "tests/test_fault_matrix.py::test_a_fault")
def death_with_fork(library: Library) -> Outcome:
    parts = []
    for what, hook in {"raise": raising(), "os._exit": exiting(), "SIGKILL": killing(signal.SIGKILL)}.items():
        vec = library.make([partial(TinyEnv, i, hook=hook if i == 2 else None) for i in range(3)], "fork", workers=3)
        error = steps_until_it_fails(vec)
        parts.append((f"{what}: {name_of(error)}", error is not None))
    _, error = attempt(lambda: library.make([partial(failing_constructor, i) for i in range(2)], "fork").reset())
    return verdict(*parts, (f"constructor: {name_of(error)}", error is not None))


@case("B3", "`close()` after a worker has died, twice", "tests/test_fault_matrix.py::test_a_fault")
def close_after_a_death(library: Library) -> Outcome:
    vec = library.make([partial(TinyEnv, 0), partial(TinyEnv, 1, hook=exiting())])
    error = steps_until_it_fails(vec)
    _, first = attempt(vec.close)
    _, second = attempt(vec.close)
    close = "works" if not first and not second else f"{name_of(first)}, {name_of(second)}"
    return Outcome(f"step {name_of(error)}; close {close}", close == "works")


def killed_when_large(env: TinyEnv) -> None:
    """In its third step, after it has had 200 MB."""
    if env.count == 3:
        len(b"x" * 200_000_000)
        killing(signal.SIGKILL)(env)


@case(
    "B4",
    "a worker is killed, having had 200 MB, or crashes in native code",
    "tests/test_faults.py::test_the_memory_of_a_killed_worker_is_told",
    "tests/core/test_stacks.py::test_a_crash_in_native_code_shows_its_python_stack",
    "tests/test_fault_matrix.py::test_a_fault",
    not_yet="the memory of a worker that was started with `spawn`",
)
def death_by_signal(library: Library) -> Outcome:
    parts = []
    for name, hook in {"SIGKILL": killed_when_large, "SIGSEGV": killing(signal.SIGSEGV)}.items():
        vec = library.make([partial(TinyEnv, 0), partial(TinyEnv, 1, hook=hook)])
        error = steps_until_it_fails(vec)
        text = told(error)
        if name == "SIGKILL":
            megabytes = [int(number) for number in re.findall(r"memory\D*?(\d+) MB", text)]
            more = len(megabytes) == 1 and 200 <= megabytes[0] < 500
            what = "its memory"
        else:
            more, what = "envs.py" in text, "its stack"
        named = name in text
        parts.append((f"{name}: {name_of(error)}{', names it' * named}{f' and {what}' * more}", named and more))
    return verdict(*parts)


@case(
    "B7",
    "asking for a method that is missing, or an attribute that cannot be pickled",
    "tests/test_engine.py::test_a_failing_call_leaves_everything_as_it_was",
    "tests/test_faults.py::test_results_that_cannot_be_pickled_are_an_error_and_no_more",
)
def failing_query(library: Library) -> Outcome:
    parts = []
    for what, query in {
        "missing": lambda vec: vec.call("nope"),
        "lock": lambda vec: vec.attribute("lock"),
    }.items():
        vec = library.make([partial(TinyEnv, i) for i in range(2)], "fork")
        vec.reset()
        _, error = attempt(query, vec)
        step, then = attempt(vec.step)
        good = then is None and step.rewards.tolist() == [1, 1]
        after = "works" if good else name_of(then)
        parts.append((f"{what}: {name_of(error)}, then step {after}", bool(error) and good))
    return verdict(*parts)


@case(
    "B8",
    "workers start while another thread holds a lock that environments want",
    "tests/core/test_config.py::test_the_default_start_method_is_never_fork",
    "tests/test_workers.py::test_fork_warns_of_other_threads_once",
)
def lock_held_by_a_thread(library: Library) -> Outcome:
    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with envs.LOCK:
            held.set()
            release.wait()

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forked, refused = attempt(library.make, [partial(TinyEnv, i) for i in range(2)], "fork")
    warned = any("fork" in str(warning.message) for warning in caught) or refused is not None
    if forked:
        forked.close()
    vec = library.make([partial(TinyEnv, i, hook=taking_the_lock) for i in range(2)])
    release.set()
    vec.reset()
    vec.step()
    return verdict(("works by default", True), (f"asked for fork it {'warns' if warned else 'says nothing'}", warned))


@case(
    "B9",
    "an environment never answers",
    "tests/core/test_stacks.py::test_a_timeout_shows_where_the_workers_are",
    "tests/test_fault_matrix.py::test_a_fault",
)
def no_answer(library: Library) -> Outcome:
    options: dict[str, Any] = {"step_timeout": 2.0} if library.ours else {}
    hooks = {2: sleeping(3600, at=3)}
    vec = library.make([partial(TinyEnv, i, hook=hooks.get(i)) for i in range(3)], workers=3, **options)
    vec.reset()
    vec.step()
    vec.step()
    if library.sb3 or library.ours:
        _, error = attempt(vec.step)
    else:
        vec.raw.step_async(vec.raw.action_space.sample())
        _, error = attempt(vec.raw.step_wait, timeout=2.0)
    text = told(error)
    names, stack = getattr(error, "env_indices", None) == (2,) and "2" in text, "sleep" in text or "envs.py" in text
    _, closed = attempt(vec.close)
    return verdict(
        (f"{name_of(error)}{', names env' * names}{', shows its stack' * stack}", names and stack),
        (f"close {name_of(closed) if closed else 'works'}", closed is None),
    )


@case(
    "B10",
    "a constructor raises",
    "tests/test_fault_matrix.py::test_a_fault",
    "tests/core/test_stacks.py::test_a_constructor_that_takes_too_long_is_shown",
)
def failing_constructors(library: Library) -> Outcome:
    parts = []
    for which, env_ids in {"env 0": [1, 0], "env 1": [0, 1]}.items():
        vec, error = attempt(library.make, [partial(failing_constructor, i) for i in env_ids])
        where = ""
        if error is None:
            _, error = attempt(vec.reset)
            where = " at the reset"
        del vec
        named = isinstance(error, FileNotFoundError) and which in told(error) and "Traceback" in told(error)
        gone = wait_until(lambda: not descendants(os.getpid()), 3.0)
        left = "" if gone else f", {len(descendants(os.getpid()))} left running"
        parts.append((f"{which}: {name_of(error)}{where}{', names it' * named}{left}", named and gone))
    return verdict(*parts)


@case(
    "B11",
    "a program ends without `close()`, or runs under MPI",
    "tests/test_faults.py::test_a_program_that_forgets_to_close_ends_quietly",
    "tests/test_workers.py::test_mpi_variables_do_not_reach_workers",
)
def forgotten_close(library: Library) -> Outcome:
    program = """
if __name__ == "__main__":
    vec = library.make([TinyEnv] * 2)
    vec.reset()
    vec.step()
    print("ready", flush=True)
"""
    ended = run_program(program, library, Path(mkdtemp()), act=lambda process: None)
    quiet = ended.out == "ready\n" and not ended.err
    os.environ["OMPI_COMM_WORLD_RANK"] = "0"
    vec = library.make([TinyEnv] * 2)
    vec.reset()
    passed_on = vec.call("variable", "OMPI_COMM_WORLD_RANK")[1] is not None
    how = f"does not end in {LIMIT:g} s" if ended.code is None else f"exit code {ended.code}"
    return verdict(
        (f"{how}, {'quiet' if quiet else 'with output'}", ended.code == 0 and quiet and not ended.left),
        (f"MPI's variables {'reach' if passed_on else 'do not reach'} workers", not passed_on),
    )
