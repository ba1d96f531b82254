"""A worker process, from its first instruction to its last.

It imports NumPy and what its environments need, nothing else: no framework, not the program's
``__main__``. It owns its environments and its end of the channel. Whatever an environment does
(raise, exit, return nonsense) becomes a reply; only the death of the parent ends a worker unasked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import pickle
import socket
import sys
from typing import Any

from fastvec._core.building import blame, build_envs, build_spares, close_envs
from fastvec._core.channel import Channel, Gone
from fastvec._core.failures import EnvFailure, RemoteFailure
from fastvec._core.layout import BatchLayout
from fastvec._core.lineage import die_with, lead_group
from fastvec._core.output import end_output
from fastvec._core.partial_runner import PartialRunner
from fastvec._core.pickles import dumps_home, freeze
from fastvec._core.protocol import (
    Adapter,
    WorkerInit,
    WorkerPayload,
)
from fastvec._core.riders import check_riders
from fastvec._core.serving import Server, mapped
from fastvec._core.sharing import received
from fastvec._core.stacks import write_stacks_to
from fastvec._core.structure import EnvDescription
from fastvec._core.surroundings import end_children, settle, start_signals
from fastvec._core.sync import Bell, ChannelBell, SemaphoreBell

__all__ = ["run_worker", "worker_main"]


def run_worker(sock: socket.socket, init: WorkerInit | None = None) -> None:
    """Run a worker in this process, which ends with it.

    Args:
        sock: Its end of the channel.
        init: What it needs to know, where it was forked and has it; otherwise it comes first on the channel.
    """
    code = 1
    try:
        start_signals()
        lead_group()
        with contextlib.suppress(Gone):
            worker_main(Channel(sock), init)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        end_children()
        end_output()
        # Not sys.exit: exit handlers of the program that this process was forked from are not ours to run.
        os._exit(code)


def worker_main(channel: Channel, init: WorkerInit | None) -> None:
    """Build the environments, report them, serve commands until told to close."""
    message = channel.receive()
    init = init or pickle.loads(message)
    del message
    stack_fd, *fds = channel.take_fds()
    lifelines, shared_fds = fds[: len(fds) - init.shared], fds[len(fds) - init.shared :]
    write_stacks_to(stack_fd)
    if lifelines:
        die_with(lifelines[0])
    envs: list[Any] = []
    spares: list[Any] = []
    try:
        with blame(None, "constructor"):
            notes = settle(init)
        env_fns, adapter, reset_options = _payload(init, shared_fds)
        # Factories may hold much data: what they travelled as is not kept beside them.
        init = dataclasses.replace(init, payload=b"")
        with blame(None, "constructor"):
            adapter.set_up(later=init.later)
        envs = build_envs(env_fns, init.env_ids, adapter)
        check_riders(envs, init.env_ids, init.with_step, adapter.look_up)
        spares = build_spares(env_fns, init.env_ids, adapter, envs, init.spare_resets)
        description = _described(envs, init, adapter)
        channel.send(dumps_home((description, notes)))
        layout: BatchLayout
        layout, description, with_semaphores = pickle.loads(channel.receive())
        views = mapped(layout, channel.take_fds()[0])
    except EnvFailure as failure:
        close_envs([*envs, *spares])
        channel.send(dumps_home(RemoteFailure.of(failure, init.worker, os.getpid())))
        return
    except Gone:  # the parent gave up, perhaps because of another worker's environments
        close_envs([*envs, *spares])
        raise
    runner = PartialRunner(
        envs,
        init.env_ids,
        description,
        views,
        views.replies[init.slot, 3:4].data,
        freeze=freeze,
        unsafe_casts=init.unsafe_casts,
        check_nan=init.check_nan,
        reset_options=reset_options,
        autoreset_mode=init.autoreset_mode,
        with_step=init.with_step,
        look_up=adapter.look_up,
        spares=spares,
        hand_over=adapter.hand_over,
        succeeds=init.succeeds,
    )
    # Long-lived objects of big libraries would be walked at every full collection.
    gc.collect()
    gc.freeze()
    command_bell: Bell = SemaphoreBell(views.bells[init.slot, 0]) if with_semaphores else ChannelBell(channel)
    channel.send(dumps_home(True))
    Server(channel, runner, views, init, command_bell).serve()


def _described(envs: list[Any], init: WorkerInit, adapter: Adapter) -> EnvDescription:
    with blame(None, "constructor"):
        return adapter.describe(envs, init.env_ids)


def _payload(init: WorkerInit, shared_fds: list[int]) -> WorkerPayload:
    if not isinstance(init.payload, bytes):
        return init.payload
    with blame(None, "unpickling the environment factories"), received(shared_fds):
        return WorkerPayload(*pickle.loads(init.payload))
