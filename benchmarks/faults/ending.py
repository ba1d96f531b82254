"""The end of a program (J)."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from tempfile import mkdtemp

from faults.case import Outcome, case, number, verdict
from faults.libraries import Library
from faults.processes import run_program


@case(
    "J1",
    "Ctrl-C in a step",
    "tests/test_faults.py::test_ctrl_c_gives_one_traceback",
    "tests/test_faults.py::test_after_an_interrupt_the_step_can_still_be_received",
)
def ctrl_c(library: Library) -> Outcome:
    program = """
if __name__ == "__main__":
    vec = library.make([lambda: TinyEnv(hook=sleeping(0.3))] * 2)
    vec.reset()
    vec.step()
    print("ready", flush=True)
    while True:
        vec.step()
"""

    def interrupt(process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGINT)

    ended = run_program(program, library, Path(mkdtemp()), act=interrupt)
    end = "hangs" if ended.code is None else "ends"
    right = ended.code is not None and ended.tracebacks == 1 and "KeyboardInterrupt" in ended.err and not ended.left
    left = f", {number(ended.left, 'process')} left" if ended.left else ""
    return Outcome(f"{end} with {number(ended.tracebacks, 'traceback')}{left}", right)


@case(
    "J2",
    "the program is killed",
    "tests/test_faults.py::test_workers_die_with_their_parent",
    "tests/core/test_lineage.py::test_workers_die_with_a_killed_parent_even_while_they_compute",
)
def killed_parent(library: Library) -> Outcome:
    program = """
if __name__ == "__main__":
    vec = library.make([lambda: TinyEnv(hook=sleeping(60, at=2))] * 2, METHOD)
    vec.reset()
    vec.step()
    if BUSY:
        vec.raw.step_async(np.zeros(2, np.int64))
        time.sleep(0.5)
    print("ready", flush=True)
    time.sleep(60)
"""
    parts = []
    for method in (None, "fork"):
        for busy in (False, True):
            ended = run_program(
                f"METHOD, BUSY = {method!r}, {busy}\n{program}",
                library,
                Path(mkdtemp()),
                act=lambda process: process.kill(),
            )
            what = f"{'busy' if busy else 'idle'}{', fork' if method else ''}"
            parts.append((f"{what}: {ended.left}", not ended.left))
    left = verdict(*parts)
    return left._replace(text="none left" if left.right else f"left {left.text}")
