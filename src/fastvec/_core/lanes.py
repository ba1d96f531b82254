"""Splits of one set of workers, as their parent sees them.

A *split* is an engine over some of the environments of every worker, and a *lane* is its place at one worker. A lane
has what a worker has: rows of commands, replies and mailbox, a reply bell, a channel, all in the split's own block;
so everything above works as it does for workers. What it shares with its siblings is the process, the bell for
commands and the count of commands::

    parent                                        worker
    LaneInit a lane (+ fds)   ── channel ──▶      Opcode.SPLIT: each lane gets its environments
                              ◀── block ────
    lane A: command 7, bell   ── A's block ─▶     steps A's environments
    lane B: command 8, bell   ── B's block ─▶     goes on with B's without a pause
                              ◀─ A's block ──     reply 7, A's bell
    lane A: command 9, bell   ── A's block ─▶     ...
    Opcode.CLOSE              ── block ────▶      closes all environments, ends

See NOTE [tickets] for the order in which a worker obeys. A worker that is stuck in sending a large reply to one split
keeps the others waiting, so whoever waits for a lane takes such replies of its siblings (:meth:`LaneHandle.relieve`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import socket
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fastvec._core.channel import Channel, Gone
from fastvec._core.handle import WorkerHandle
from fastvec._core.layout import BatchViews
from fastvec._core.lineage import close_in_children
from fastvec._core.pickles import dumps
from fastvec._core.pool import WorkerPool
from fastvec._core.protocol import LaneInit
from fastvec._core.shm import SharedBlock
from fastvec._core.sync import SemaphoreBell
from fastvec.errors import ConfigError

if TYPE_CHECKING:
    from fastvec._core.processes import ProcessEngine

__all__ = ["LaneHandle", "LanePool", "check_divisible", "divided", "make_lanes"]

#: A message of so many bytes fits into a channel that is empty, whatever its worker does.
_SURELY_FITS = 1 << 14

#: Seconds that a look at another lane may take.
_LOOK = 0.02


class LaneHandle(WorkerHandle):
    """A worker as one of its splits sees it. The process and its last words are the trunk's.

    Args:
        trunk: The worker itself.
        env_ids: The lane's environments in the split.
        channel: The lane's; owned.
    """

    def __init__(self, trunk: WorkerHandle, env_ids: range, channel: Channel) -> None:
        super().__init__(trunk.index, trunk.slot, env_ids, trunk.process, channel, trunk.stacks)
        self._trunk = trunk

    def attach(self, views: BatchViews, *, with_semaphores: bool) -> None:
        """Take up the lane's rows of the split's block."""
        super().attach(views, with_semaphores=with_semaphores)
        self.command_bell = self._trunk.command_bell
        self._taken_sequence = self.sequence

    def announce(self, opcode: int, code: int = 0, bank: int = 0) -> None:
        """Write a command, which ``command_bell`` is to ring for; see NOTE [tickets]."""
        command, trunk = self._command, self._trunk
        command[1], command[2], command[3] = opcode, code, bank
        trunk.sequence += 1
        self.sequence = command[0] = trunk.sequence

    def tell(
        self, opcode: int, message: bytes, deadline: float | None, fds: tuple[int, ...] = (), bank: int = 0
    ) -> None:
        """Give the worker something to do, with a message that it can read at once."""
        if len(message) > _SURELY_FITS:  # the worker might be stuck in sending, and so would we
            for lane in self._siblings():
                lane.take_early(deadline)
        super().tell(opcode, message, deadline, fds, bank)

    def relieve(self) -> None:
        """Take replies to other splits, so that the worker is not stuck in sending one."""
        for lane in self._siblings():
            if lane.reply[0] == lane.sequence:  # a hint
                with contextlib.suppress(Gone, TimeoutError):  # what has come of it is kept
                    lane.take_early(time.monotonic() + _LOOK)

    def take_early(self, deadline: float | None) -> None:
        """Wait for the reply to the last command, if there is one to come, and keep it for who waits for it.

        Raises:
            Gone: The worker has died.
            TimeoutError: It did not come in time.
        """
        if self._taken_sequence == self.sequence:
            return
        while not (self.has_replied(_LOOK) or self.ring_was_lost()):
            if self.process.poll() is not None:
                raise Gone
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError
        self.take_reply(deadline)

    def release(self) -> None:
        """Close the channel; what the system holds for the worker is the trunk's to give back."""
        self.released = True
        self.channel.close()

    def _siblings(self) -> list[LaneHandle]:
        return [lane for lane in self._trunk.lanes if lane is not self and isinstance(lane, LaneHandle)]


class LanePool(WorkerPool):
    """The lanes of one split; their workers are another pool's, which the last split to close stops.

    Args:
        trunk: That pool.
        workers: One handle a worker.
        views: Of the split's block.
        open_pools: The pools that have not been stopped, which this one joins.
    """

    def __init__(
        self, trunk: WorkerPool, workers: Sequence[LaneHandle], views: BatchViews, open_pools: set[LanePool]
    ) -> None:
        self._trunk, self._open = trunk, open_pools
        self.workers = list(workers)
        self.leaving, self.coming = {}, []
        self.views, self.description = views, trunk.description
        self.doorbell = None if trunk.doorbell is None else SemaphoreBell(views.doorbell)
        open_pools.add(self)

    def ask_to_close(self) -> None:
        """Tell the workers, of which no split can make use any more."""
        self._trunk.ask_to_close()

    def stop(self, grace: float | None = None) -> None:
        """Give up these lanes, and with the last ones the workers. Idempotent."""
        self._open.discard(self)
        if not self._open:
            self._trunk.stop(grace)
        self.workers, self.views, self.doorbell = [], None, None


def divided(env_ids: range, parts: int) -> list[range]:
    """A contiguous range in so many, whose sizes differ by at most 1."""
    base, extra = divmod(len(env_ids), parts)
    bounds = [env_ids.start + part * base + min(part, extra) for part in range(parts + 1)]
    return [range(low, high) for low, high in itertools.pairwise(bounds)]


def check_divisible(slices: Iterable[range], parts: int) -> None:
    """Raise a ConfigError unless each worker has an environment for each part."""
    fewest = min(map(len, slices))
    if fewest < parts:
        raise ConfigError(
            f"split({parts}) gives each split a part of every worker's environments, but a worker has only {fewest}: "
            f"in_series must be at least {parts} (or num_workers smaller)"
        )


def make_lanes(engine: ProcessEngine, pool: WorkerPool, parts: Sequence[Sequence[range]]) -> list[LanePool]:
    """Divide the workers of an engine, which is closed then, among pools of lanes.

    Args:
        engine: Nothing is pending in it.
        pool: Its pool.
        parts: Of each split, the environments at each worker.
    """
    inits = [_lane_inits(pool, its) for its in parts]
    blocks: list[SharedBlock] = []
    lanes: list[list[LaneHandle]] = []
    theirs: list[list[socket.socket]] = []
    all_views: list[BatchViews] = []
    with_semaphores = pool.doorbell is not None
    try:
        for its in inits:
            layout = its[0].layout
            blocks.append(SharedBlock.create(layout.nbytes))
            if layout.banks == 1:  # else a forked child may still look at an observation
                blocks[-1].keep_from_children()
            all_views.append(BatchViews(layout, blocks[-1].buffer))
            if with_semaphores:
                SemaphoreBell(all_views[-1].doorbell).initialize()
            lanes.append([])
            theirs.append([])
            for worker, init in zip(pool.workers, its, strict=True):
                channel, sock = Channel.pair()
                close_in_children(channel)
                theirs[-1].append(sock)
                lanes[-1].append(LaneHandle(worker, init.env_ids, channel))
                lanes[-1][-1].attach(all_views[-1], with_semaphores=with_semaphores)
        messages = [dumps(list(of_worker)) for of_worker in zip(*inits, strict=True)]
        fds = [
            (*(block.fd for block in blocks), *(sock.fileno() for sock in socks)) for socks in zip(*theirs, strict=True)
        ]
        engine.hand_over(messages, fds)
    except BaseException:
        for its_lanes in lanes:
            for lane in its_lanes:
                lane.release()
        raise
    finally:
        for sock in (sock for socks in theirs for sock in socks):
            sock.close()
        for block in blocks:
            block.close()
    for worker, handles in zip(pool.workers, zip(*lanes, strict=True), strict=True):
        worker.lanes = [*handles]
    open_pools: set[LanePool] = set()
    return [LanePool(pool, its, views, open_pools) for its, views in zip(lanes, all_views, strict=True)]


def _lane_inits(pool: WorkerPool, parts: Sequence[range]) -> list[LaneInit]:
    """What the workers need to know of one split."""
    assert pool.views is not None
    layout = dataclasses.replace(pool.views.layout, num_envs=sum(map(len, parts)))
    inits, at = [], 0
    for worker, part in zip(pool.workers, parts, strict=True):
        first = part.start - worker.env_ids.start
        inits.append(LaneInit(range(first, first + len(part)), range(at, at + len(part)), layout))
        at += len(part)
    return inits
