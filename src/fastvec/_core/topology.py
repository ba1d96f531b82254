"""Which CPUs this process may use, and which of them each worker is to run on.

Reads the affinity mask, the cgroup CPU quota (v1 and v2) and the kernel's map of cores, siblings
and NUMA nodes, and turns them into a :class:`Topology`, a plain value. :func:`plan_affinity` is a
pure function of it. Nothing here starts a process or changes one, but :func:`pin`.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cpu", "Topology", "pin", "pin_all_threads", "plan_affinity", "read_topology"]


@dataclass(frozen=True)
class Cpu:
    """One logical CPU.

    Attributes:
        index: The number that the kernel gives it.
        core: A number that it shares with its hyper-threading siblings and with no other CPU.
        node: Its NUMA node.
    """

    index: int
    core: int
    node: int


@dataclass(frozen=True)
class Topology:
    """The CPUs that this process may run on, and how much of them.

    Attributes:
        cpus: The CPUs of the affinity mask, by index.
        quota: CPUs' worth of time that the cgroup grants, or None where it sets no limit.
    """

    cpus: tuple[Cpu, ...]
    quota: float | None = None

    @property
    def usable(self) -> int:
        """How many CPUs can be kept busy: the mask, cut to the quota rounded up; at least 1."""
        if self.quota is None:
            return max(1, len(self.cpus))
        return max(1, min(len(self.cpus), math.ceil(self.quota)))

    def placement_order(self) -> list[Cpu]:
        """The CPUs in the order in which to fill them: node after node, every core once, then siblings."""
        rank: dict[int, int] = {}
        seen_of_core: dict[int, int] = {}
        for cpu in self.cpus:
            rank[cpu.index] = seen_of_core.get(cpu.core, 0)
            seen_of_core[cpu.core] = rank[cpu.index] + 1
        return sorted(self.cpus, key=lambda cpu: (rank[cpu.index], cpu.node, cpu.index))


def plan_affinity(
    topology: Topology, num_workers: int, *, cpus_per_worker: int = 1, first: int = 0
) -> list[frozenset[int]]:
    """Give each worker a window of CPUs.

    Physical cores are used before their siblings and node by node, so that neighbouring workers
    share a node. Workers beyond the CPUs start again from the first.

    Args:
        topology: The machine.
        num_workers: How many workers to place.
        cpus_per_worker: Width of a window, for environments that compute on several threads.
        first: Where in the order to begin. Under a CPU quota every container sees all CPUs of the
            host; containers that all began with CPU 0 would share it.

    Returns:
        One set of CPU indices a worker.
    """
    order = [cpu.index for cpu in topology.placement_order()]
    width = min(cpus_per_worker, len(order))
    return [
        frozenset(order[(first + worker * width + k) % len(order)] for k in range(width))
        for worker in range(num_workers)
    ]


def pin(cpus: frozenset[int]) -> None:
    """Bind the calling process to a set of CPUs.

    Raises:
        OSError: Where the platform has no affinity, or refuses this one.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise OSError("this platform has no CPU affinity")
    os.sched_setaffinity(0, cpus)


def pin_all_threads(cpus: frozenset[int] | dict[int, set[int]]) -> dict[int, set[int]]:
    """Bind every thread of this process, of which :func:`pin` reaches only the calling one.

    Args:
        cpus: CPUs for all threads, or an earlier result, to give each thread its mask back.

    Returns:
        The masks before, by thread.
    """
    before: dict[int, set[int]] = {}
    for task in map(int, os.listdir("/proc/self/task")):
        # Threads that came later have the mask of the one that started them.
        mask = cpus.get(task, cpus.get(os.getpid(), set())) if isinstance(cpus, dict) else cpus
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            before[task] = os.sched_getaffinity(task)
            os.sched_setaffinity(task, mask)
    return before


def read_topology(root: Path = Path("/")) -> Topology:
    """Read the machine as this process sees it.

    Args:
        root: Where ``sys`` and ``proc`` hang; another one in tests.
    """
    mask = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    nodes = _nodes(root)
    return Topology(
        cpus=tuple(Cpu(index, _core(root, index), nodes.get(index, 0)) for index in mask),
        quota=_cgroup_quota(root),
    )


def parse_cpu_list(text: str) -> list[int]:
    """The CPUs of a kernel list such as ``"0-3,8"``."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        if part:
            low, _, high = part.partition("-")
            cpus.extend(range(int(low), int(high or low) + 1))
    return cpus


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _core(root: Path, index: int) -> int:
    """The lowest sibling names the core: unlike ``core_id`` it is unique across sockets."""
    siblings = _read(root / f"sys/devices/system/cpu/cpu{index}/topology/thread_siblings_list")
    return min(parse_cpu_list(siblings)) if siblings and siblings.strip() else index


def _nodes(root: Path) -> dict[int, int]:
    node_of: dict[int, int] = {}
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        for cpu in parse_cpu_list(_read(folder / "cpulist") or ""):
            node_of[cpu] = int(re.sub(r"\D", "", folder.name))
    return node_of


def _cgroup_quota(root: Path) -> float | None:
    """The tightest CPU limit between this process's cgroup and the root of the hierarchy."""
    quotas: list[float] = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            quotas += _quotas_upwards(root / "sys/fs/cgroup", path, _quota_v2)
        elif "cpu" in controllers.split(","):
            quotas += _quotas_upwards(root / "sys/fs/cgroup" / controllers, path, _quota_v1)
            quotas += _quotas_upwards(root / "sys/fs/cgroup/cpu", path, _quota_v1)
    return min(quotas, default=None)


def _quotas_upwards(mount: Path, path: str, read: Callable[[Path], float | None]) -> list[float]:
    # Inside a container the path may be the host's and not exist below the mount: the mount itself is then ours.
    folder = mount / path.strip("/")
    folders: Sequence[Path] = [folder, *folder.parents]
    return [
        quota for one in folders if one == mount or mount in one.parents for quota in [read(one)] if quota is not None
    ]


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = (_read(folder / "cpu.max") or "max").strip().partition(" ")
    return _ratio(quota, period)


def _quota_v1(folder: Path) -> float | None:
    quota = (_read(folder / "cpu.cfs_quota_us") or "-1").strip()
    return _ratio(quota, (_read(folder / "cpu.cfs_period_us") or "").strip())


def _ratio(quota: str, period: str) -> float | None:
    """CPUs' worth of time; None for the kernel's two ways (``max``, ``-1``) to say that there is no limit."""
    return int(quota) / int(period or 100_000) if quota.isdigit() and int(quota) > 0 else None
