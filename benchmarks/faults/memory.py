"""Memory, shared memory and the objects of the kernel (C)."""

from __future__ import annotations

import gc
import re
import signal
import subprocess
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from gymnasium import spaces

import fastvec
from faults.case import Outcome, case, verdict
from faults.envs import Returning, TinyEnv
from faults.libraries import Library
from faults.processes import run_program

MB = 2**20

#: Runs a command with a /dev/shm of its own, of one megabyte.
SMALL_SHM = ("unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "sh")


def private_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(kb) * 1024 for kb in re.findall(r"Private_\w+: +(\d+) kB", text))


def has_namespaces() -> bool:
    return subprocess.run([*SMALL_SHM, "true"], capture_output=True, check=False).returncode == 0


@case(
    "C1",
    "what a worker loads before there is an environment",
    "tests/test_workers.py::test_a_worker_imports_no_learning_framework",
    "tests/test_workers.py::test_an_idle_worker_of_make_vec_env_is_small",
    not_yet="a command that shows the memory of a worker",
)
def idle_worker(library: Library) -> Outcome:
    vec = library.make([TinyEnv] * 2)
    vec.reset()
    torch = vec.call("has_module", "torch")[1]
    size = sorted(private_bytes(pid) for pid in vec.call("pid"))[-1] // MB
    return Outcome(f"{size} MB private, PyTorch {'imported' if torch else 'not imported'}", not torch)


@case(
    "C2",
    "a factory holds a large array",
    "tests/test_sharing.py::test_workers_map_it_and_nobody_copies_it",
)
def large_array(library: Library) -> Outcome:
    array = np.ones(40 * MB, np.uint8)

    def make(data: Any) -> TinyEnv:
        env = TinyEnv()
        env.data = data  # type: ignore[attr-defined]
        return env

    ways = [("fork", "fork", array), ("forkserver", "forkserver", array)]
    if library.ours:
        ways.append(("forkserver, fastvec.shared()", "forkserver", fastvec.shared(array)))
    parts = []
    for name, method, large in ways:
        grown = []
        for data in (None, large):
            vec = library.make([partial(make, data)] * 4, method, workers=4)
            vec.reset()
            grown.append(sum(private_bytes(pid) for pid in vec.call("pid")))
            vec.close()
        copies = (grown[1] - grown[0]) / array.nbytes
        # Whoever has a way to share has to be asked for it.
        right = copies < 0.1 or (library.ours and large is array)
        parts.append((f"{name}: {max(round(copies), 0)} copies in 4 workers", right))
    return verdict(*parts)


@case(
    "C3",
    "a /dev/shm that is too small",
    "tests/core/test_shm.py::test_memory_that_is_not_there_is_an_error_at_once",
    "tests/core/test_shm.py::test_its_pages_are_reserved_when_it_is_made",
    "tests/test_scarcity.py::test_a_full_temporary_folder_and_1_mb_of_dev_shm_are_enough",
)
def small_shared_memory(library: Library) -> Outcome:
    if not has_namespaces():
        return Outcome("needs unprivileged user namespaces", None)
    program = """
def make():
    space = spaces.Dict({str(i): spaces.Box(0, 1, (200_000,), np.float32) for i in range(4)})
    return Returning(space, [{str(i): np.ones(200_000, np.float32) for i in range(4)}])

if __name__ == "__main__":
    vec = library.make([make], "fork")
    try:
        print("sum", sum(leaf.sum() for leaf in vec.reset().values()))
    finally:
        os._exit(0)
"""
    ended = run_program(program, library, Path(mkdtemp()), prefix=SMALL_SHM, limit=20.0)
    if "sum 800000" in ended.out:
        return Outcome("works", True)
    died = re.search(r"signal 7|SIGBUS|Bus error|-7", ended.err)
    error = re.findall(r"^(?:\w+\.)*(\w*Error)\b", ended.err, re.MULTILINE)
    how = "hangs" if ended.code is None else f"exit code {ended.code}"
    text = "a worker dies of SIGBUS" if died else f"raises {error[-1]}" if error else how
    return Outcome(text, bool(error) and "MemoryError" in error[-1])


def semaphores(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("/dev/shm/sem.")


@case("C4", "semaphores, by the number of leaves in an observation", "tests/core/test_shm.py::test_a_block_has_no_name")
def kernel_objects(library: Library) -> Outcome:
    counts = []
    for size in (1, 30):
        space = spaces.Dict({str(i): spaces.Discrete(3) for i in range(size)})
        vec = library.make([partial(Returning, space, [dict.fromkeys(space, 1)])] * 2, "fork")
        vec.reset()
        counts.append(max(semaphores(pid) for pid in vec.call("pid")))
        vec.close()
        del vec
        gc.collect()
    return Outcome(f"{counts[0]} for 1 leaf, {counts[1]} for 30", counts[0] == counts[1])


@case(
    "C5",
    "what is left in /dev/shm and on stderr, when a worker and then the program is killed",
    "tests/core/test_shm.py::test_nothing_remains_after_the_last_array",
    "tests/test_faults.py::test_50_engines_one_after_the_other_leave_nothing",
)
def left_behind(library: Library) -> Outcome:
    program = """
if __name__ == "__main__":
    before = set(os.listdir("/dev/shm"))
    vec = library.make([TinyEnv] * 2)
    vec.reset()
    if END == "worker":
        os.kill(vec.call("pid")[1], signal.SIGKILL)
        try:
            vec.step()
        except Exception:
            pass
    print("ready", sorted(set(os.listdir("/dev/shm")) - before), flush=True)
    if END == "program":
        time.sleep(60)
"""
    parts = []
    for end in ("worker", "program"):
        ended = run_program(
            f"END = {end!r}\n{program}",
            library,
            Path(mkdtemp()),
            act=lambda process, end=end: process.send_signal(signal.SIGKILL) if end == "program" else None,
            python=("-W", "error::UserWarning:multiprocessing"),
        )
        names = "ready []" not in ended.out
        clean = not names and not ended.err and ended.code is not None
        found = ["named segments"] * names + ["output on stderr"] * bool(ended.err) + ["hangs"] * (ended.code is None)
        parts.append((f"{end} killed: {', '.join(found) or 'nothing'}", clean))
    return verdict(*parts)


LEAK: list[bytes] = []


class Leaking(TinyEnv):
    """Keeps a megabyte of each episode for good."""

    def reset(self, **arguments: Any) -> Any:
        LEAK.append(b"x" * MB)
        return super().reset(**arguments)


@case(
    "C7",
    "an environment that leaks 1 MB an episode",
    "tests/test_recycling.py::test_a_worker_that_leaks_stays_small",
    "tests/test_recycling.py::test_nothing_of_it_is_seen_in_the_data",
)
def leak(library: Library) -> Outcome:
    def grown(options: dict[str, Any]) -> float:
        vec = library.make([partial(Leaking, i, horizon=1) for i in range(2)], "fork", **options)
        vec.reset()
        before = sum(private_bytes(pid) for pid in set(vec.call("pid")))
        for _ in range(200):  # 100 episodes of each at least, where a reset takes a step
            vec.step()
        after = sum(private_bytes(pid) for pid in set(vec.call("pid")))
        vec.close()
        return (after - before) / MB

    text, right = "memory grows with every episode", grown({}) < 100
    if library.ours:
        right = grown({"max_episodes_per_worker": 20}) < 100
        text += f"; with max_episodes_per_worker it {'is given back' if right else 'does too'}"
    return Outcome(text, right)
