"""A word about PyTorch's threads, which spin while they wait for work and so take CPUs from the workers."""

from __future__ import annotations

import logging
import sys

__all__ = ["tell_of_spinning"]

_LOGGER = logging.getLogger("fastvec")

_told: list[bool] = []


def tell_of_spinning(num_workers: int, usable_cpus: int) -> None:
    """Log a warning, once a process, where this process's PyTorch and the workers want more CPUs than there are.

    Args:
        num_workers: Worker processes.
        usable_cpus: CPUs for them and this process.
    """
    torch = sys.modules.get("torch")
    if _told or not num_workers or torch is None:
        return
    threads = torch.get_num_threads()
    if threads > 1 and threads + num_workers > usable_cpus:
        _told.append(True)
        _LOGGER.warning(
            "PyTorch uses %d threads in this process, beside %d workers on %d CPUs. While its threads wait for work "
            "they spin, and take the CPUs from the workers: torch.set_num_threads(1) before training makes steps "
            "faster, and for small networks the updates too",
            threads,
            num_workers,
            usable_cpus,
        )
