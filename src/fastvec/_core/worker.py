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
import time
from collections.abc import Callable, Iterator
from typing import Any

from fastvec._core.building import build_envs, close_envs
from fastvec._core.channel import Channel, Gone
from fastvec._core.failures import EnvFailure, RemoteFailure
from fastvec._core.layout import BatchLayout, BatchViews
from fastvec._core.lineage import die_with, lead_group
from fastvec._core.output import end_output
from fastvec._core.partial_runner import PartialRunner
from fastvec._core.pickles import dumps_home, freeze
from fastvec._core.protocol import (
    NO_NEWS,
    REPLY_NUMBER,
    Adapter,
    AdoptRequest,
    CallRequest,
    Opcode,
    ResetRequest,
    Status,
    WorkerInit,
    WorkerPayload,
)
from fastvec._core.sharing import received
from fastvec._core.shm import SharedBlock
from fastvec._core.stacks import write_stacks_to
from fastvec._core.structure import EnvDescription
from fastvec._core.surroundings import end_children, settle, start_signals
from fastvec._core.sync import Bell, ChannelBell, SemaphoreBell, spin

__all__ = ["run_worker", "worker_main"]

#: How long an idle worker sleeps at a stretch before it looks whether its parent still lives.
_IDLE_SLICE = 1.0

#: Seconds. Where the last command came as soon as this, a worker looks for the next one for twice that time before it
#: sleeps, which saves the parent a wake-up. A learner takes longer to choose actions and needs the CPU for it.
_SHORT_GAP = 200e-6

#: What a command with a message is called where the message cannot be read.
_COMMANDS = {
    Opcode.STEP_OBJECTS: "step",
    Opcode.STEP_SOME: "step",
    Opcode.RESET: "reset",
    Opcode.RETIRE: "moving to another worker",
    Opcode.ADOPT: "moving from another worker",
}


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
    try:
        with _blaming_set_up("constructor"):
            notes = settle(init)
        env_fns, adapter, reset_options = _payload(init, shared_fds)
        # Factories may hold much data: what they travelled as is not kept beside them.
        init = dataclasses.replace(init, payload=b"")
        with _blaming_set_up("constructor"):
            adapter.set_up(later=init.later)
        envs = build_envs(env_fns, init.env_ids, adapter)
        description = _described(envs, init, adapter)
        channel.send(dumps_home((description, notes)))
        layout: BatchLayout
        layout, description, with_semaphores = pickle.loads(channel.receive())
        block = SharedBlock(channel.take_fds()[0], layout.nbytes)
        views = BatchViews(layout, block.buffer)
        block.close()
    except EnvFailure as failure:
        close_envs(envs)
        channel.send(dumps_home(RemoteFailure.of(failure, init.worker, os.getpid())))
        return
    except Gone:  # the parent gave up, perhaps because of another worker's environments
        close_envs(envs)
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
        succeeds=init.succeeds,
    )
    # Long-lived objects of big libraries would be walked at every full collection.
    gc.collect()
    gc.freeze()
    bells = views.bells[init.slot]
    command_bell, reply_bell = (
        (SemaphoreBell(bells[0]), SemaphoreBell(bells[1])) if with_semaphores else (ChannelBell(channel),) * 2
    )
    channel.send(dumps_home(True))
    _Server(channel, runner, views, init, command_bell, reply_bell).serve()


class _Server:
    """The command loop. It owns nothing; :func:`worker_main` does."""

    def __init__(
        self,
        channel: Channel,
        runner: PartialRunner,
        views: BatchViews,
        init: WorkerInit,
        command_bell: Bell,
        reply_bell: Bell,
    ) -> None:
        self._channel, self._runner, self._views, self._init = channel, runner, views, init
        self._command_bell, self._reply_bell = command_bell, reply_bell
        self._command = views.commands[init.slot].data
        self._reply = views.replies[init.slot].data
        self._mailbox = views.mailbox[init.slot].data
        self._rows = slice(init.env_ids.start, init.env_ids.stop)
        self._spins = init.spins
        self._gap = 1.0  # seconds between the last reply and the command that followed it

    def serve(self) -> None:
        command, step, runner, views = self._command, Opcode.STEP.value, self._runner, self._views
        sequence = 0
        while True:
            self._await_command(sequence)
            sequence, opcode, code = command[0], command[1], command[2]
            if command[3] != runner.bank:
                runner.use(command[3])
            if opcode == step:
                # A copy, as environments may keep the action that they were given.
                actions = views.actions(code)[self._rows].copy()
                self._answer(sequence, runner.step, actions)
            elif opcode == Opcode.CLOSE:
                self._close()
                return
            else:
                self._answer(sequence, self._handle, opcode, self._channel.receive())

    def _close(self) -> None:
        """Nobody waits for the reply: what goes wrong is shown where the environments' own output goes."""
        try:
            self._runner.close()
        except EnvFailure as failure:
            error = failure.error
            sys.excepthook(type(error), error, error.__traceback__)

    def _await_command(self, last: int) -> None:
        started = time.perf_counter()
        if self._spins and self._gap < _SHORT_GAP:
            spin(self._command, 0, last + 1, 2 * self._gap)
        # By the number, too: a ring alone might be a stray one.
        while not (self._command_bell.wait(_IDLE_SLICE) and self._command[0] != last):
            if self._channel.at_end():
                raise Gone
        self._gap = time.perf_counter() - started

    def _handle(self, opcode: int, message: bytes) -> Any:
        if opcode == Opcode.CALL:
            with _blaming_set_up("call"):
                request: CallRequest = pickle.loads(message)
            return _picklable(self._runner.call(request), request, self._init.env_ids)
        command = Opcode(opcode)
        with _blaming_set_up(_COMMANDS[command]):
            arguments = pickle.loads(message)
        if command is Opcode.STEP_OBJECTS:
            return self._runner.step(arguments)
        if command is Opcode.STEP_SOME:
            return self._runner.step_some(arguments)
        if command is Opcode.RESET:
            reset: ResetRequest = arguments
            return self._runner.reset(*reset)
        if command is Opcode.RETIRE:
            return self._runner.retire(arguments)
        adoption: AdoptRequest = arguments
        return self._runner.adopt(*adoption)

    def _answer(self, sequence: int, function: Callable[..., Any], *args: Any) -> None:
        status = Status.DONE
        try:
            result = function(*args)
            if result is None or result is NO_NEWS:
                payload = b""
            else:
                payload = result if isinstance(result, bytes) else dumps_home(result)
        except Exception as error:
            failure = error if isinstance(error, EnvFailure) else EnvFailure(None, "a worker", error)
            status = Status.FAILED
            payload = dumps_home(RemoteFailure.of(failure, self._init.worker, os.getpid()))
        self._reply[3] = 0
        in_mailbox = len(payload) <= len(self._mailbox)
        if in_mailbox:
            self._mailbox[: len(payload)] = payload
        reply = self._reply
        reply[1], reply[2] = status.value, len(payload)
        reply[0] = sequence
        self._reply_bell.ring()
        if not in_mailbox:
            self._channel.send(REPLY_NUMBER.pack(sequence) + payload)


def _picklable(results: list[Any], request: CallRequest, env_ids: range) -> bytes:
    """Pickle results here, where it is known whose cannot be."""
    try:
        return dumps_home(results)
    except Exception:
        for row, result in zip(request.rows, results, strict=True):
            try:
                dumps_home(result)
            except Exception as error:
                raise EnvFailure(
                    env_ids[row],
                    request.name,
                    TypeError(f"the result, a {type(result).__name__}, cannot be sent to the parent process: {error}"),
                ) from error
        raise


@contextlib.contextmanager
def _blaming_set_up(command: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise EnvFailure(None, command, error) from error


def _described(envs: list[Any], init: WorkerInit, adapter: Adapter) -> EnvDescription:
    with _blaming_set_up("constructor"):
        return adapter.describe(envs, init.env_ids)


def _payload(init: WorkerInit, shared_fds: list[int]) -> WorkerPayload:
    if not isinstance(init.payload, bytes):
        return init.payload
    with _blaming_set_up("unpickling the environment factories"), received(shared_fds):
        return WorkerPayload(*pickle.loads(init.payload))
