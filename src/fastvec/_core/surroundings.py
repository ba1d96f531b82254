"""What a worker's process is made to be before its environments come, and after they have gone."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys

import numpy as np

from fastvec._core.output import output_prefix, prefix_output
from fastvec._core.protocol import WorkerInit
from fastvec._core.topology import pin

__all__ = ["end_children", "settle", "start_signals"]


def start_signals() -> None:
    """Leave Ctrl-C to the parent, and forget the handlers of the program that this process was forked from."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def settle(init: WorkerInit) -> list[str]:
    """Make this process what its environments expect, before any of their modules is imported.

    Returns:
        What could not be done, for the parent to warn of.
    """
    notes = []
    if init.prefix_output:
        prefix_output(output_prefix(init.worker, init.env_ids))
    if init.cpus is not None:
        try:
            pin(init.cpus)
        except OSError as error:
            notes.append(f"workers are not pinned to CPUs: {error}")
    if dict(os.environ) != init.environ:
        for name in os.environ.keys() - init.environ.keys():
            del os.environ[name]
        os.environ.update(init.environ)
    os.chdir(init.cwd)
    sys.path[:] = init.sys_path
    sys.argv[:] = init.argv
    sys.stdin = open(os.devnull)  # noqa: SIM115
    forked_from_program = not isinstance(init.payload, bytes)
    if init.threads is not None and forked_from_program:
        _cap_threads(init.threads)
    # A fork copies the state of these generators: unseeded environments would all play the same episode.
    random.seed()
    np.random.seed(int.from_bytes(os.urandom(4), "little"))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(int.from_bytes(os.urandom(7), "little"))
    return notes


def _cap_threads(threads: int) -> None:
    """Cap the libraries that were loaded before the fork; later ones read the environment variables."""
    import threadpoolctl

    threadpoolctl.threadpool_limits(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def end_children() -> None:
    """End the processes that environments started with multiprocessing and left running."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        with contextlib.suppress(Exception):
            for child in process.active_children():
                # After a fork the list has the children of the program, too, which are not this worker's to end.
                if child._parent_pid == os.getpid():
                    child.terminate()
