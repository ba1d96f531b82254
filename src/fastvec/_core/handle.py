"""One worker as its parent sees it: commands to it, replies from it, and what became of it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence

from fastvec._core.channel import Channel, Gone
from fastvec._core.launch import EXIT_UNKNOWN, WorkerProcess, wait_for_exit
from fastvec._core.layout import BatchViews
from fastvec._core.lineage import end_group
from fastvec._core.protocol import REPLY_NUMBER, Opcode
from fastvec._core.stacks import StackFile
from fastvec._core.sync import Bell, ChannelBell, SemaphoreBell
from fastvec.errors import WorkerDiedError

__all__ = ["WorkerHandle", "death_of", "end_workers", "waiting_for"]

#: Seconds that a worker may be kept from running between writing its reply and ringing for it.
_RING_PATIENCE = 0.2

#: After SIGTERM, and again after SIGKILL, this long for a worker to be gone.
_KILL_GRACE = 1.0

#: Of so many workers the stacks are shown where several do not answer.
_MOST_STACKS = 3


class WorkerHandle:
    """One worker as its parent sees it. The pool owns what it refers to.

    Attributes:
        index: Which slice of the environments it has; a successor has the same.
        slot: Which rows of the block it has.
        sequence: Number of the last command sent.
        lanes: Handles of the same worker by which splits command it; see :mod:`fastvec._core.lanes`.
    """

    def __init__(
        self, index: int, slot: int, env_ids: range, process: WorkerProcess, channel: Channel, stacks: StackFile
    ) -> None:
        self.index, self.slot, self.env_ids = index, slot, env_ids
        self.process, self.channel = process, channel
        self.sequence = 0
        self.stacks = stacks
        self.released = False
        self.lanes: list[WorkerHandle] = []
        # The payload of the last reply, for who is interrupted before he has put it in its place.
        self._taken, self._taken_sequence = b"", -1
        # The last reply whose ring has been taken: where rings are messages, the next message is none.
        self._rung = -1
        self.command_bell: Bell
        self.reply_bell: Bell
        self.reply: memoryview

    def attach(self, views: BatchViews, *, with_semaphores: bool) -> None:
        """Take up this worker's rows of the shared block."""
        # A worker that had this place before may have left anything in its rows.
        views.commands[self.slot] = views.replies[self.slot] = 0
        self._command = views.commands[self.slot].data
        self.reply = views.replies[self.slot].data
        self.channel.expects_fds = False
        self._mailbox = views.mailbox[self.slot].data
        if with_semaphores:
            command, reply = SemaphoreBell(views.bells[self.slot, 0]), SemaphoreBell(views.bells[self.slot, 1])
            command.initialize()
            reply.initialize()
            self.command_bell, self.reply_bell = command, reply
        else:
            self.command_bell = self.reply_bell = ChannelBell(self.channel)

    def env_in_progress(self) -> int | None:
        """The environment whose code the worker runs, or ran when it died."""
        row = self.reply[3] if hasattr(self, "reply") else 0
        return self.env_ids[row - 1] if row else None

    def stack(self) -> str:
        """The Python stack of the worker, which is alive; empty if it cannot write one."""
        return self.stacks.ask(self.process.pid)

    def release(self) -> None:
        """Give back what the system holds for the worker, which has ended. Idempotent."""
        if not self.released:
            end_group(self.process.pid)
        self.released = True
        self.channel.close()
        self.process.release()
        self.stacks.close()
        for lane in self.lanes:
            lane.release()

    def ask_to_close(self) -> None:
        """Tell the worker to close its environments and end; does not wait."""
        if self.released:
            return
        with contextlib.suppress(Gone, TimeoutError, OSError):
            if hasattr(self, "command_bell"):
                self.command(Opcode.CLOSE)
            else:
                self.channel.close()

    def command(self, opcode: int, code: int = 0, bank: int = 0) -> None:
        """Give the worker something to do; what does not fit in a row follows on the channel."""
        self.announce(opcode, code, bank)
        self.command_bell.ring()

    def announce(self, opcode: int, code: int = 0, bank: int = 0) -> None:
        """Write a command, which ``command_bell`` is to ring for."""
        command = self._command
        command[1], command[2], command[3] = opcode, code, bank
        self.sequence += 1
        command[0] = self.sequence

    def tell(
        self, opcode: int, message: bytes, deadline: float | None, fds: tuple[int, ...] = (), bank: int = 0
    ) -> None:
        """Give the worker something to do that takes more than a row of the block.

        Raises:
            Gone: It has died.
            TimeoutError: It did not take all of the message in time.
        """
        self.command(opcode, 0, bank)
        self.channel.send(message, fds=fds, deadline=deadline, sentinel=self.process.sentinel)

    def relieve(self) -> None:
        """Take what the worker may be stuck in sending to others than who waits for it."""

    def has_replied(self, timeout: float) -> bool:
        """Whether the reply to the last command is there; waits for it at most ``timeout`` seconds.

        Raises:
            Gone: The worker has died, where that is seen in waiting.
        """
        if self._rung == self.sequence:
            return True
        # A ring may be left over from before: see ring_was_lost.
        if not (self.reply_bell.wait(timeout) and self.reply[0] == self.sequence):
            return False
        self._rung = self.sequence
        return True

    def ring_was_lost(self) -> bool:
        """Whether the reply is there but its ring has been taken, by a wait that an interrupt then ended."""
        if self.reply[0] != self.sequence:
            return False
        # Far more often the worker was only interrupted between its reply and its ring. Should the ring come after
        # all, has_replied() will know it by the number of the next reply.
        self.reply_bell.wait(_RING_PATIENCE)
        self._rung = self.sequence
        return True

    def take_reply(self, deadline: float | None = None) -> tuple[int, bytes]:
        """Status and payload of the reply that is there, also when asked again.

        Raises:
            Gone: The worker died while sending a payload too large for the mailbox.
            TimeoutError: Such a payload did not come in time; what has come of it is kept.
        """
        if self._taken_sequence != self.sequence:
            nbytes = self.reply[2]
            if nbytes <= len(self._mailbox):
                self._taken = bytes(self._mailbox[:nbytes]) if nbytes else b""
            else:
                self._taken = self._receive_large(deadline)
            self._taken_sequence = self.sequence
            if nbytes > len(self._mailbox):
                self.channel.drop()
        return self.reply[1], self._taken

    def _receive_large(self, deadline: float | None) -> bytes:
        """The payload that follows on the channel, which keeps it until it is dropped."""
        while True:
            message = self.channel.peek(deadline=deadline, sentinel=self.process.sentinel)
            if REPLY_NUMBER.unpack_from(message)[0] == self.sequence:
                return message[REPLY_NUMBER.size :]
            self.channel.drop()  # of an earlier reply, whose receiver was interrupted before it dropped it


def end_workers(workers: Sequence[WorkerHandle], grace: float) -> None:
    """Wait for workers to end, for some seconds; then terminate them, then kill them, and release them."""
    deadline = time.monotonic() + grace
    workers = [worker for worker in workers if not worker.released]
    running: list[WorkerProcess] = [worker.process for worker in workers]
    while running and time.monotonic() < deadline:
        for worker in workers:  # a worker may be stuck in sending what nobody wants any more
            for handle in (worker, *worker.lanes):
                handle.channel.discard()
        running = wait_for_exit(running, min(0.05, max(0.0, deadline - time.monotonic())))
    for signal_number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        for process in running:
            process.kill(signal_number)
        running = wait_for_exit(running, _KILL_GRACE) if running else running
    for worker in workers:
        worker.release()


def waiting_for(workers: Sequence[WorkerHandle], *, with_stacks: bool = True) -> str:
    """Whom a wait is for, and where in their code they are."""
    env_ids = [i for worker in workers for i in worker.env_ids]
    pids = ", ".join(f"worker {worker.index} (pid {worker.process.pid}{_at(worker, ', in')})" for worker in workers)
    shown = workers[:_MOST_STACKS] if with_stacks else []
    stacks = [(worker.index, worker.stack()) for worker in shown]
    return f"waiting for envs {env_ids} of {pids}" + "".join(
        f"\n\nPython stack of worker {index}:\n\n{stack}" for index, stack in stacks if stack
    )


def death_of(worker: WorkerHandle, command: str) -> WorkerDiedError:
    """Describe the death of a worker; waits a moment for the exit code to be known."""
    wait_for_exit([worker.process], 0.5)
    code, pid = worker.process.poll(), worker.process.pid
    how = "its exit code is not known"
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        how = f"it was killed by {name}"
        if name == "SIGKILL":
            how += " (often the kernel's out-of-memory killer: see `dmesg`)"
            peak = worker.process.peak_rss()
            if peak is not None:
                how += f"; its resident memory was at most {peak / 1e6:.0f} MB"
        elif name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL"):
            how += " (a crash in native code of an environment or a library)"
    elif code is not None and code != EXIT_UNKNOWN:
        how = f"it ended itself with exit code {code}"
    ids = worker.env_ids
    envs = f"env {ids[0]}" if len(ids) == 1 else f"envs {ids[0]} to {ids[-1]}"
    stack = worker.stacks.read()
    return WorkerDiedError(
        f"worker {worker.index} (pid {pid}, {envs}) died during {command}{_at(worker, ' of')}: {how}"
        + (f"\n\nIts last Python stack:\n\n{stack}" if stack else ""),
        worker=worker.index,
        pid=pid,
        exitcode=None if code == EXIT_UNKNOWN else code,
        env_index=worker.env_in_progress(),
    )


def _at(worker: WorkerHandle, how: str) -> str:
    env_id = worker.env_in_progress()
    return "" if env_id is None or len(worker.env_ids) == 1 else f"{how} env {env_id}"
