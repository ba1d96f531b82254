"""What the parent and a worker say to each other.

A worker's life::

    parent                                   worker
    WorkerInit            ── channel ──▶     pin, set variables, cap threads, build environments
                          ◀── channel ──     EnvDescription | RemoteFailure
    BatchLayout (+ fd)    ── channel ──▶     map the block
                          ◀── channel ──     True | RemoteFailure
    commands row, bell    ── block ────▶     Opcode.STEP: step; any other: take the message from the channel
                          ◀── block ────     replies row, bell; a payload in the mailbox, or on the channel if larger
    ...
    Opcode.CLOSE          ── block ────▶     close environments, end

After Opcode.SPLIT each lane of the worker has a block and a channel of its own, where all goes on in this
way; Opcode.CLOSE, and the bell for commands, stay where they were. See :mod:`fastvec._core.lanes`.

Where a worker is recycled, its successor does all this beside it. From Opcode.RETIRE on the old one
leaves its environments as their episodes end, and by Opcode.ADOPT the new one goes on with them.

Every command has a sequence number and its reply repeats it, so a late reply is never taken for a
later one. A worker has at most one command at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from fastvec._core.bulk import Bulk
from fastvec._core.config import AutoresetMode
from fastvec._core.infos import InfoSchema
from fastvec._core.layout import BatchLayout
from fastvec._core.options import ResetOptions
from fastvec._core.structure import EnvDescription

__all__ = [
    "NO_NEWS",
    "REPLY_NUMBER",
    "Adapter",
    "AdoptRequest",
    "CallMessage",
    "CallRequest",
    "LaneInit",
    "Opcode",
    "ResetRequest",
    "Status",
    "StepNews",
    "WorkerInit",
    "WorkerPayload",
]


#: Before a payload that follows on the channel: the sequence number of its command.
REPLY_NUMBER = struct.Struct("<q")


class Opcode(IntEnum):
    """What a worker is to do; in column 1 of its row of ``commands``."""

    STEP = 1  # actions lie in the block
    STEP_OBJECTS = 2  # actions follow on the channel
    RESET = 3
    CALL = 4
    CLOSE = 5
    RETIRE = 6  # a list of rows follows on the channel
    ADOPT = 7
    SPLIT = 8  # a list of LaneInit follows on the channel, with descriptors
    STEP_SOME = 9  # a dict of actions by row follows on the channel


class Status(IntEnum):
    """How it went; in column 1 of a worker's row of ``replies``."""

    DONE = 1
    FAILED = 2


class Adapter(Protocol):
    """What a face tells the engine about its framework's environments. It is pickled to the workers."""

    def set_up(self, *, later: bool) -> None:
        """Called once in a worker, before its factories; ``later`` where it takes the place of another one."""

    def prepare(self, env: Any) -> Any:
        """The environment to use in place of the one that a factory returned."""

    def building_spares(self) -> AbstractContextManager[list[Any]]:
        """A context for factories that are called once more; in it, a list to put their environments in."""

    def hand_over(self, ended: Any, ready: Any) -> None:
        """Leave with an index what belongs to it, as a spare environment takes the place of one that has ended."""

    def look_up(self, env: Any, name: str) -> Any:
        """An attribute of the outermost wrapper that has it; raises AttributeError where none does."""

    def describe(self, envs: list[Any], env_ids: range) -> EnvDescription:
        """What these environments declare; raises SpaceMismatchError where they disagree."""

    def difference(self, first: EnvDescription, other: EnvDescription) -> str | None:
        """In words, how two descriptions differ, or None."""

    def modules_for(self, strings: set[str]) -> list[str]:
        """Modules that factories which mention these strings will import, as far as the framework can tell."""


class WorkerPayload(NamedTuple):
    """What a worker gets of the user's own code."""

    env_fns: list[Callable[[], Any]]
    adapter: Adapter
    reset_options: ResetOptions


@dataclass(frozen=True)
class WorkerInit:
    """Everything that a new worker needs to know.

    Attributes:
        worker: Its index.
        slot: Its rows in the block's regions that have one a worker.
        later: Whether its environments were in another worker before.
        succeeds: Whether that one steps them yet, and will leave them to it.
        env_ids: Its environments.
        environ: All environment variables to run with.
        sys_path: Where to import from.
        argv: The program's command line, which environments may read.
        cwd: The working directory.
        cpus: CPUs to bind to, or None.
        threads: Cap on compute threads, or None.
        unsafe_casts: See EngineConfig.
        check_nan: See EngineConfig.
        autoreset_mode: See EngineConfig.
        with_step: See EngineConfig.
        spare_resets: See EngineConfig.
        prefix_output: See EngineConfig.
        spins: Whether to look for the next command for a moment before sleeping: only where each worker can have a CPU.
        shared: How many descriptors of shared arrays come with it, after all others.
        payload: The factories, what the face adds, and the options of automatic resets; pickled, unless the process was
            forked and has them anyway.
    """

    worker: int
    slot: int
    later: bool
    succeeds: bool
    env_ids: range
    environ: Mapping[str, str]
    sys_path: tuple[str, ...]
    argv: tuple[str, ...]
    cwd: str
    cpus: frozenset[int] | None
    threads: int | None
    unsafe_casts: bool
    check_nan: bool
    autoreset_mode: AutoresetMode
    with_step: tuple[str, ...]
    spare_resets: int
    prefix_output: bool
    spins: bool
    shared: int
    payload: bytes | WorkerPayload = field(repr=False)


class LaneInit(NamedTuple):
    """What a worker needs to know of one lane. The block's descriptor comes with it, and that of its channel.

    Attributes:
        rows: The lane's environments among the worker's.
        env_ids: Their rows in the split's block.
        layout: Of that block.
    """

    rows: range
    env_ids: range
    layout: BatchLayout


class ResetRequest(NamedTuple):
    """Reset some environments of the worker (local indices), each with its keyword arguments.

    Attributes:
        anew: For environments in the place of others that were lost: the options of the last reset of each, and how
            many automatic ones there were since. They then count as ended.
        held: Whether the next step leaves them out.
    """

    rows: list[int]
    arguments: list[Mapping[str, Any]]
    anew: list[tuple[Any, int]] | None = None
    held: bool = False


class CallRequest(NamedTuple):
    """Apply ``function(env, *args, **kwargs)`` to some environments (local indices, in order).

    Attributes:
        each: Further positional arguments, a tuple an environment; None for none.
        lasting: Whether it is to be done to spare environments too.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: list[int]
    each: list[tuple[Any, ...]] | None = None
    lasting: bool = False


class CallMessage(NamedTuple):
    """A :class:`CallRequest` on its way.

    Attributes:
        common: Its name, function, args and kwargs, which all workers get.
        own: What follows in it, pickled.
    """

    common: Bulk
    own: bytes


class AdoptRequest(NamedTuple):
    """Go on with environments that another worker has left, between two episodes.

    Attributes:
        left: What they take along, by row: see ``StepNews.left``.
        at_once: Whether to reset them now; else the next step does, or another command.
    """

    left: dict[int, bytes]
    at_once: bool


class StepNews(NamedTuple):
    """What a step or a reset has to say beyond the arrays. Falsy parts are the common case.

    Attributes:
        schemas: Info schemas that appear for the first time.
        rests: Frozen ``infos.Rest`` by row.
        reset_infos: Frozen infos of the resets that happened, by row.
        finals: Frozen last observations by row, where the block does not hold them exactly.
        objects: Frozen values of the leaves that travel as pickles, by (leaf, row).
        left: By row, the environments that this worker steps no more, with what their successors need; pickled.
        riders: What rides along, by row: what the block does not hold of it, frozen as ``rests`` are.
        rider_schemas: Schemas of what rides along that appear for the first time.
    """

    schemas: list[InfoSchema]
    rests: dict[int, Any]
    reset_infos: dict[int, Any]
    finals: dict[int, Any]
    objects: dict[tuple[int, int], Any]
    left: dict[int, bytes]
    riders: dict[int, Any]
    rider_schemas: list[InfoSchema]

    def of(self, rows: Collection[int]) -> StepNews:
        """What the news of a reset say of some rows."""
        reset_infos = {row: info for row, info in self.reset_infos.items() if row in rows}
        return NO_NEWS._replace(
            reset_infos=reset_infos, objects={key: value for key, value in self.objects.items() if key[1] in rows}
        )

    def and_then(self, later: StepNews) -> StepNews:
        """These news and those of a later command to the same worker, of which no row is in both."""
        return StepNews(
            self.schemas + later.schemas,
            self.rests | later.rests,
            self.reset_infos | later.reset_infos,
            self.finals | later.finals,
            self.objects | later.objects,
            self.left | later.left,
            self.riders | later.riders,
            self.rider_schemas + later.rider_schemas,
        )


#: The news of an ordinary step: none. Compared by identity.
NO_NEWS = StepNews([], {}, {}, {}, {}, {}, {}, [])
