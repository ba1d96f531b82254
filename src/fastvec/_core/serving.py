"""The commands to a worker, and its replies to them.

A :class:`Server` waits for commands in one lane of a worker and obeys them. It owns nothing: the environments, the
channel and the arrays are its maker's.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from fastvec._core.building import blame
from fastvec._core.bulk import unpack
from fastvec._core.channel import Channel, Gone
from fastvec._core.dividing import IDLE_SLICE, Part, divide, serve_lanes
from fastvec._core.failures import EnvFailure, RemoteFailure
from fastvec._core.layout import BatchLayout, BatchViews
from fastvec._core.partial_runner import PartialRunner
from fastvec._core.pickles import dumps_home
from fastvec._core.protocol import (
    NO_NEWS,
    REPLY_NUMBER,
    AdoptRequest,
    CallRequest,
    LaneInit,
    Opcode,
    ResetRequest,
    Status,
    WorkerInit,
)
from fastvec._core.shm import SharedBlock
from fastvec._core.spares import Spares
from fastvec._core.sync import Bell, ChannelBell, SemaphoreBell, spin

__all__ = ["Server", "mapped"]

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
    Opcode.SPLIT: "split",
}
_STEP = Opcode.STEP.value


class Server:
    """The command loop of one lane."""

    def __init__(
        self,
        channel: Channel,
        runner: PartialRunner,
        views: BatchViews,
        init: WorkerInit,
        command_bell: Bell,
    ) -> None:
        self._channel, self._runner, self._views, self._init = channel, runner, views, init
        self._command_bell = command_bell
        self._reply_bells: list[Bell]
        if isinstance(command_bell, SemaphoreBell):
            # Its own first: the parent, woken by the other one, looks for it.
            self._reply_bells = [SemaphoreBell(views.bells[init.slot, 1]), SemaphoreBell(views.doorbell)]
        else:
            self._reply_bells = [ChannelBell(channel)]
        self.command = views.commands[init.slot].data
        self._reply = views.replies[init.slot].data
        self._mailbox = views.mailbox[init.slot].data
        self._rows = slice(init.env_ids.start, init.env_ids.stop)
        self.sequence = 0  # of the last command
        self._lanes: list[Server] = []
        self._gap = 1.0  # seconds between the last reply and the command that followed it

    def serve(self) -> None:
        while not self._lanes:
            self._await_command(self.sequence)
            if not self.obey():
                return
        serve_lanes(self, self._lanes, self._command_bell, self._channel)
        for lane in self._lanes:
            lane.close()

    def obey(self) -> bool:
        """Do what the command row says and reply; False where that is the end."""
        command = self.command
        self.sequence, opcode, code = command[0], command[1], command[2]
        if command[3] != self._runner.bank:
            self._runner.use(command[3])
        if opcode == _STEP:
            # A copy, as environments may keep the action that they were given.
            actions = self._views.actions(code)[self._rows].copy()
            self._answer(self.sequence, self._runner.step, actions)
        elif opcode == Opcode.CLOSE:
            self.close()
            return False
        else:
            self._answer(self.sequence, self._handle, opcode, self._channel.receive())
        return True

    def close(self) -> None:
        """Nobody waits for the reply: what goes wrong is shown where the environments' own output goes."""
        try:
            self._runner.close()
        except EnvFailure as failure:
            error = failure.error
            sys.excepthook(type(error), error, error.__traceback__)

    def _await_command(self, last: int) -> None:
        started = time.perf_counter()
        if self._init.spins and self._gap < _SHORT_GAP:
            spin([(self.command, last + 1)], started + 2 * self._gap)
        spares = self._runner.spares
        # By the number, too: a ring alone might be a stray one.
        while not (
            self._command_bell.wait(IDLE_SLICE if spares is None else self._patience(spares, started))
            and self.command[0] != last
        ):
            if self._channel.at_end():
                raise Gone
            if spares is not None and not self._patience(spares, started):
                waited = time.perf_counter() - started
                spares.prepare_one()
                if self.command[0] != last:  # when it came is not known: not before that
                    started = time.perf_counter() - waited
        self._gap = time.perf_counter() - started

    def _patience(self, spares: Spares, started: float) -> float:
        """How long to wait before a spare environment is reset, which a command then has to wait for.

        As long as a reset takes, so that nobody waits much longer than this worker has; not at all, where the last
        command took longer to come than a reset takes.
        """
        if not spares.want_time:
            return IDLE_SLICE
        return 0.0 if self._gap > spares.seconds else max(0.0, started + spares.seconds - time.perf_counter())

    def _handle(self, opcode: int, message: bytes) -> Any:
        if opcode == Opcode.CALL:
            fds = self._channel.take_fds()
            with blame(None, "call"):
                common, own = pickle.loads(message)
                request = CallRequest(*unpack(common, fds), *pickle.loads(own))
            return _picklable(self._runner.call(request), request, self._init.env_ids)
        command = Opcode(opcode)
        with blame(None, _COMMANDS[command]):
            arguments = pickle.loads(message)
        if command is Opcode.STEP_OBJECTS:
            return self._runner.step(arguments)
        if command is Opcode.STEP_SOME:
            return self._runner.step_some(arguments)
        if command is Opcode.RESET:
            reset: ResetRequest = arguments
            return self._runner.reset(*reset)
        if command is Opcode.SPLIT:
            return self._divide(arguments)
        if command is Opcode.RETIRE:
            return self._runner.retire(arguments)
        adoption: AdoptRequest = arguments
        return self._runner.adopt(*adoption)

    def _divide(self, inits: list[LaneInit]) -> None:
        """Give every environment to a lane."""
        fds = self._channel.take_fds()
        channels = [Channel(socket.socket(fileno=fd)) for fd in fds[len(inits) :]]
        views = [mapped(lane.layout, fd) for lane, fd in zip(inits, fds, strict=False)]
        slot = self._init.slot
        parts = [
            Part(lane.rows, lane.env_ids, its, its.replies[slot, 3:4].data)
            for lane, its in zip(inits, views, strict=True)
        ]
        for part, channel in zip(parts, channels, strict=True):
            init = dataclasses.replace(self._init, env_ids=part.env_ids)
            runner = divide(self._runner, self._views, part)
            self._lanes.append(Server(channel, runner, part.views, init, self._command_bell))
        self._runner.envs = []

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
        for bell in self._reply_bells:
            bell.ring()
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


def mapped(layout: BatchLayout, fd: int) -> BatchViews:
    """The arrays of a block, whose descriptor is closed."""
    block = SharedBlock(fd, layout.nbytes)
    views = BatchViews(layout, block.buffer)
    block.close()
    return views
