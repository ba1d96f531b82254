"""Inside one process: the environments of one runner divided among several, and the order in which these are served.

It is the one module beside :mod:`fastvec._core.runner` that knows what an
:class:`~fastvec._core.runner.EnvRunner` remembers of its environments.

NOTE [tickets]: the commands to one worker are numbered across its lanes, and each is written before it is rung for. So
whoever has taken n rings sees the first n commands, and serves them in the order of their numbers. A ring that has no
command with the next number is not counted. The end of all comes first, whatever waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fastvec._core.channel import Channel, Gone
from fastvec._core.layout import BatchViews
from fastvec._core.partial_runner import PartialRunner
from fastvec._core.reset_options import AutomaticOptions
from fastvec._core.runner import EnvRunner
from fastvec._core.sync import Bell

__all__ = ["IDLE_SLICE", "Lane", "Part", "divide", "serve_lanes"]

#: How long an idle worker sleeps at a stretch before it looks whether its parent still lives.
IDLE_SLICE = 1.0


class Part(NamedTuple):
    """Some environments of a runner, for another.

    Attributes:
        rows: Which of the runner's.
        env_ids: Their rows in the other's arrays.
        views: These arrays.
        at: See :class:`~fastvec._core.runner.EnvRunner`.
    """

    rows: range
    env_ids: range
    views: BatchViews
    at: memoryview


def divide(runner: EnvRunner, views: BatchViews, part: Part) -> PartialRunner:
    """A runner that goes on with some environments of another, which is not to be used for them any more.

    Args:
        runner: The other one, between two commands.
        views: Its arrays.
        part: Which environments.
    """
    first, last = part.rows.start, part.rows.stop
    whole_ids = runner._env_ids[first:last]
    for array, whole in zip(part.views.banks[0], views.banks[runner.bank], strict=True):
        if array is not None and whole is not None:
            array[part.env_ids.start : part.env_ids.stop] = whole[whole_ids.start : whole_ids.stop]
    rule, nans, riders = runner._options.rule, runner._nans, runner._riders
    other = PartialRunner(
        runner.envs[first:last],
        part.env_ids,
        runner._description,
        part.views,
        part.at,
        freeze=runner._freeze,
        unsafe_casts=runner._observations.unsafe_casts,
        check_nan=nans is not None,
        autoreset_mode=runner._mode,
        with_step=() if riders is None else riders.names,
        look_up=getattr if riders is None else riders.look_up,
    )
    # The rule is asked for environments by their indices in the whole: what it says does not depend on splits.
    other._options = other._roster.options = AutomaticOptions(rule, whole_ids)
    other._options.last, other._options.counts = runner._options.last[first:last], runner._options.counts[first:last]
    other._roster.ended = {row - first for row in runner._roster.ended if row in part.rows}
    if nans is not None and other._nans is not None:
        other._nans.follow(nans, first)
    return other


class Lane(Protocol):
    """What serves one lane.

    Attributes:
        command: Its command row.
        sequence: The number of the last command obeyed.
    """

    command: memoryview
    sequence: int

    def obey(self) -> bool:
        """Do what the command row says."""


def serve_lanes(trunk: Lane, lanes: Sequence[Lane], bell: Bell, channel: Channel) -> None:
    """Serve the lanes of a worker until it is told to close; see NOTE [tickets].

    Args:
        trunk: Where that is told; its last command has made the lanes.
        lanes: The lanes.
        bell: Rung for every command.
        channel: Ends with the parent.
    """
    ended, ticket = trunk.sequence, trunk.sequence + 1
    while True:
        while not bell.wait(IDLE_SLICE):
            if channel.at_end():
                raise Gone
        if trunk.command[0] != ended:
            return
        for lane in lanes:
            if lane.command[0] == ticket:
                ticket += 1
                lane.obey()
                break
