"""What processes do to the machine (E)."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from faults.case import Outcome, case, phase, verdict
from faults.envs import TinyEnv
from faults.libraries import Library
from faults.processes import descendants

NO_CHOICE = "one process an environment"


@case(
    "E3",
    "5 environments for 2 workers",
    "tests/core/test_config.py::test_slices_are_contiguous_and_differ_by_at_most_one",
    "tests/test_engine.py::test_rows_belong_to_their_environments",
)
def more_envs_than_workers(library: Library) -> Outcome:
    vec = library.make([partial(TinyEnv, i) for i in range(5)], "fork")
    vec.reset()
    pids = vec.call("pid")
    sizes = [pids.count(pid) for pid in dict.fromkeys(pids)]
    in_order = vec.step().obs[:, 0].tolist() == [0, 1, 2, 3, 4]
    right = in_order and len(sizes) == 2 and max(sizes) - min(sizes) <= 1
    return Outcome(f"workers have {'+'.join(map(str, sizes))}" if right else NO_CHOICE, right)


@case(
    "E5",
    "compute threads in a worker",
    "tests/test_workers.py::test_compute_threads_are_capped",
    not_yet="a command that counts threads, workers and CPUs together",
)
def compute_threads(library: Library) -> Outcome:
    if len(os.sched_getaffinity(0)) < 2:
        return Outcome("needs 2 CPUs", None)
    vec = library.make([TinyEnv] * 2)
    vec.reset()
    threads = max(vec.call("compute_threads"))
    return Outcome("1" if threads == 1 else "as many as CPUs", threads == 1)


@case(
    "E10",
    "binding workers to CPUs, in a program that may use one only",
    "tests/test_workers.py::test_pinning_stays_within_the_affinity_mask",
    "tests/core/test_topology.py::test_a_core_is_used_once_before_any_of_its_siblings",
)
def pinning(library: Library) -> Outcome:
    if not library.ours:
        return Outcome("does not bind", None)
    allowed = os.sched_getaffinity(0)
    parts = []
    for mask in (allowed, {max(allowed)}):
        os.sched_setaffinity(0, mask)
        vec = library.make([TinyEnv] * 2, cpu_affinity="auto")
        vec.reset()
        masks = vec.call("affinity")
        apart = len(mask) < 2 or not set(masks[0]) & set(masks[1])
        kept = os.sched_getaffinity(0) == mask
        inside = set().union(*masks) <= mask
        text = "apart and within the mask" if len(mask) > 1 else "with one CPU within the mask"
        parts.append((text if apart and inside and kept else f"{masks} of {mask}", apart and inside and kept))
        vec.close()
    return verdict(*parts)


@case(
    "E11",
    "how many workers there are where one CPU may be used",
    "tests/core/test_config.py::test_defaults_are_one_worker_a_usable_cpu",
    "tests/core/test_topology.py::test_the_quota_limits_the_usable_cpus",
    not_yet="a command that shows the count of usable CPUs and its reason",
)
def usable_cpus(library: Library) -> Outcome:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    options: dict[str, Any] = {"num_workers": None} if library.ours else {}
    vec = library.make([TinyEnv] * 6, "fork", **options)
    vec.reset()
    count = len(set(vec.call("pid")))
    return Outcome(f"{count} for 6 environments", count == 1)


def cpu_seconds(pids: list[int]) -> float:
    ticks = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] for pid in pids]
    return sum(int(tick) for pair in ticks for tick in pair) / os.sysconf("SC_CLK_TCK")


@case(
    "E13",
    "CPU time of 4 workers that wait for the learner",
    "tests/test_engine.py::test_idle_workers_use_no_time",
    "tests/core/test_sync.py::test_spinning_ends_in_time",
)
def idle_time(library: Library) -> Outcome:
    vec = library.make([TinyEnv] * 4, "fork", workers=4)
    vec.reset()
    for _ in range(100):
        vec.step()
    pids = [os.getpid(), *descendants(os.getpid())]
    phase("a pause")
    before = cpu_seconds(pids)
    time.sleep(2.0)
    used = (cpu_seconds(pids) - before) / 2.0
    return Outcome(f"{used:.0%} of one CPU", used < 0.05)
