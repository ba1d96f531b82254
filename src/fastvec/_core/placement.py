"""Which CPUs the workers and this process are bound to: what the options about it mean on a machine.

Pure functions of the machine that :mod:`fastvec._core.topology` reads; nothing is bound here.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from fastvec._core.checks import all_of
from fastvec._core.options import CpuAffinity
from fastvec._core.topology import Topology, plan_affinity
from fastvec.errors import ConfigError

__all__ = ["resolve_cpus"]


def resolve_cpus(
    topology: Topology, num_workers: int, cpu_affinity: CpuAffinity, pin_learner: bool, cpus_per_worker: int
) -> tuple[tuple[frozenset[int], ...] | None, frozenset[int] | None]:
    """One set of CPUs a worker, and those of this process; None for leaving them where they are."""
    if cpu_affinity is None or num_workers == 0:
        if pin_learner and num_workers:
            raise ConfigError("pin_learner=True needs cpu_affinity: without it the workers may run on every CPU")
        return None, None
    allowed = frozenset(cpu.index for cpu in topology.cpus)
    if isinstance(cpu_affinity, str):
        if cpu_affinity != "auto":
            raise ConfigError(f"cpu_affinity must be 'auto', a list of CPUs or a list of sets, got {cpu_affinity!r}")
        # Containers that share a host by quota see the same CPUs: begin at a different one in each process.
        first = os.getpid() if topology.usable < len(allowed) else 0
        plan = plan_affinity(topology, num_workers, cpus_per_worker=cpus_per_worker, first=first)
    else:
        plan = _explicit_plan(cpu_affinity, num_workers, allowed)
    rest = allowed - frozenset().union(*plan)
    return tuple(plan), (rest or allowed) if pin_learner else None


def _explicit_plan(cpu_affinity: Any, num_workers: int, allowed: frozenset[int]) -> list[frozenset[int]]:
    wrong = ConfigError(f"cpu_affinity must be 'auto', a list of CPUs or a list of sets of CPUs, got {cpu_affinity!r}")
    if not isinstance(cpu_affinity, Iterable):
        raise wrong
    entries = list(cpu_affinity)
    if not entries:
        raise ConfigError("cpu_affinity is empty: expected CPUs, or None to leave placement to the system")
    if all_of(entries, (int, np.integer)):
        plan = [frozenset([int(entries[worker % len(entries)])]) for worker in range(num_workers)]
    elif all(isinstance(entry, Collection) and all_of(entry, (int, np.integer)) for entry in entries):
        if len(entries) != num_workers:
            raise ConfigError(
                f"cpu_affinity must hold one set of CPUs a worker: expected {num_workers} sets, got {len(entries)}"
            )
        plan = [frozenset(int(cpu) for cpu in entry) for entry in entries]
    else:
        raise wrong
    for worker, cpus in enumerate(plan):
        if not cpus or not cpus <= allowed:
            raise ConfigError(
                f"cpu_affinity gives worker {worker} the CPUs {sorted(cpus)}, but this process may use "
                f"{sorted(allowed)}"
            )
    return plan
