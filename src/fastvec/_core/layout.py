"""What lies where in the shared block.

One block holds everything that a step moves. Regions follow each other, each aligned to 64 bytes,
each an array whose first axis is the worker or the environment::

    bells        (workers, 2, 128) uint8    two unnamed semaphores a worker, each on cache lines of its own
    doorbell     (128,) uint8               one semaphore that every worker rings with its own
    commands     (workers, 8) int64         written by the parent:  sequence number, opcode, dtype of the actions,
                                            bank to write observations to
    replies      (workers, 8) int64         written by the worker:  sequence number, status, bytes in the mailbox, whose
                                            code it runs (1 for the first of its environments, 0 for none)
    mailbox      (workers, M) uint8         pickled news of a step, where it fits
    rewards      (envs,) float64
    flags        (envs,) uint8              bits of StepFlag
    info_codes   (envs,) int32              which InfoSchema a row of info_cells was written with; 0 is {}
    info_cells   (envs, C) float64          eight-byte cells, read by the schema
    actions      (envs * A,) uint8          a C-contiguous (envs, *shape) array of the batch's own dtype
    obs[k]       (envs, *shape) dtype       one for each leaf of the observation, and all of them again for each
                                            further bank: obs[k].1, obs[k].2, ...
    final[k]     (envs, *shape) dtype       last observation of an episode, valid in the step that ended it
    rider_codes  (envs,) int32              what rides along with a step, if anything does, written like an info
    rider_cells  (envs, R) float64

A worker writes only the rows of its environments and its own reply, the parent only commands and
actions; :mod:`fastvec._core.sync` says when.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastvec._core.structure import ArraySpec, EnvDescription, Leaf, leaves

__all__ = ["ACTION_DTYPES", "ENDED", "BatchLayout", "BatchViews", "StepFlag"]

ALIGNMENT = 64
BELL_BYTES = 128
INFO_CELLS = 128
RIDER_CELLS = 512
MAILBOX_BYTES = 1 << 16

#: Dtypes in which a batch of actions may travel; its index in this tuple goes with the command.
ACTION_DTYPES: tuple[np.dtype[Any], ...] = tuple(
    # By their types: several characters name an int64, and the scalars of each are of another type.
    np.dtype(kind)
    for kind in (
        *(np.bool_, np.float16, np.float32, np.float64),
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    )
)
_ACTION_ITEMSIZE = 8


class StepFlag(IntFlag):
    """What a step said about the episode of an environment."""

    TERMINATED = 1
    TRUNCATED = 2
    #: ``truncated`` was a ``numpy.bool_``: some faces hand it on as it came.
    TRUNCATED_IS_NUMPY = 4
    #: The last observation of the episode lies in ``final``, exactly as the environment gave it.
    FINAL_IN_BLOCK = 8


#: The bits of an episode that has ended.
ENDED = (StepFlag.TERMINATED | StepFlag.TRUNCATED).value


@dataclass(frozen=True)
class BatchLayout:
    """Names, shapes and offsets of every region; a pure function of what the environments declare.

    Attributes:
        num_envs: How many environments there are.
        num_workers: How many workers there can be at a time, successors included; 0 for environments in this process.
        observations: One spec a leaf, None for leaves that travel as pickles.
        action: Spec of one action, None where actions travel as pickles.
        has_riders: Whether anything rides along with a step.
        banks: Places for the observations of all environments; see :mod:`fastvec._core.leases`.
    """

    num_envs: int
    num_workers: int
    observations: tuple[ArraySpec | None, ...]
    action: ArraySpec | None
    has_riders: bool = False
    banks: int = 1

    @classmethod
    def of(
        cls,
        description: EnvDescription,
        num_envs: int,
        num_workers: int,
        *,
        has_riders: bool = False,
        banks: int = 1,
    ) -> BatchLayout:
        """The layout for environments that declare ``description``."""
        action = description.action
        return cls(
            num_envs,
            num_workers,
            tuple(leaf.spec for leaf in leaves(description.observation)),
            action.spec if isinstance(action, Leaf) else None,
            has_riders,
            banks,
        )

    def regions(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any], int]]:
        """Shape, dtype and byte offset of each region by name."""
        envs, workers = self.num_envs, self.num_workers
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "bells": ((workers, 2, BELL_BYTES), np.uint8),
            "doorbell": ((BELL_BYTES if workers else 0,), np.uint8),
            "commands": ((workers, 8), np.int64),
            "replies": ((workers, 8), np.int64),
            "mailbox": ((workers, MAILBOX_BYTES), np.uint8),
            "rewards": ((envs,), np.float64),
            "flags": ((envs,), np.uint8),
            "info_codes": ((envs,), np.int32),
            "info_cells": ((envs, INFO_CELLS), np.float64),
            "actions": ((envs * (self.action.size if self.action else 0) * _ACTION_ITEMSIZE,), np.uint8),
        }
        for name in (*map(_bank_name, range(self.banks)), "final{}"):
            for index, spec in enumerate(self.observations):
                if spec is not None:
                    shapes[name.format(index)] = ((envs, *spec.shape), spec.dtype)
        if self.has_riders:
            shapes |= {"rider_codes": ((envs,), np.int32), "rider_cells": ((envs, RIDER_CELLS), np.float64)}
        regions: dict[str, tuple[tuple[int, ...], np.dtype[Any], int]] = {}
        offset = 0
        for name, (shape, dtype) in shapes.items():
            regions[name] = (shape, np.dtype(dtype), offset)
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
        regions["end"] = ((0,), np.dtype(np.uint8), offset)
        return regions

    @property
    def nbytes(self) -> int:
        """Bytes of the whole block; never 0, which no system maps."""
        return max(self.regions()["end"][2], ALIGNMENT)

    def bank(self, bank: int) -> tuple[int, int]:
        """Where the regions of a bank begin, and how many bytes they have together."""
        names = [_bank_name(bank).format(index) for index, spec in enumerate(self.observations) if spec is not None]
        regions = [region for name, region in self.regions().items() if name in names]
        if not regions:
            return 0, 0
        shape, dtype, last = regions[-1]
        return regions[0][2], last + math.prod(shape) * dtype.itemsize - regions[0][2]

    def offsets_in_bank(self) -> list[int]:
        """Where the region of each leaf begins in a bank, 0 for leaves that have none."""
        regions, start = self.regions(), self.bank(0)[0]
        return [
            0 if spec is None else regions[f"obs{index}"][2] - start for index, spec in enumerate(self.observations)
        ]


def _bank_name(bank: int) -> str:
    return f"obs{{}}.{bank}" if bank else "obs{}"


class BatchViews:
    """NumPy arrays over a block, by name. They own nothing and live as long as their buffer.

    Attributes:
        bells, doorbell, commands, replies, mailbox, rewards, flags, info_codes, info_cells: See the module's drawing.
        banks: By bank, one ``(num_envs, *shape)`` array a leaf, None for leaves that travel as pickles.
        bank_bytes: By bank, all of it, ``(nbytes,) uint8``.
        finals: As a bank, for the last observations of episodes.
        rider_codes, rider_cells: See the module's drawing; without rows where nothing rides along.
        buffer: What the arrays lie in.
    """

    def __init__(self, layout: BatchLayout, buffer: Any) -> None:
        regions = layout.regions()

        def view(name: str) -> NDArray[Any]:
            shape, dtype, offset = regions[name]
            return np.ndarray(shape, dtype, buffer, offset)

        self.layout = layout
        self.bells: NDArray[np.uint8] = view("bells")
        self.doorbell: NDArray[np.uint8] = view("doorbell")
        self.commands: NDArray[np.int64] = view("commands")
        self.replies: NDArray[np.int64] = view("replies")
        self.mailbox: NDArray[np.uint8] = view("mailbox")
        self.rewards: NDArray[np.float64] = view("rewards")
        self.flags: NDArray[np.uint8] = view("flags")
        self.info_codes: NDArray[np.int32] = view("info_codes")
        self.info_cells: NDArray[np.float64] = view("info_cells")

        def leaves(name: str) -> list[NDArray[Any] | None]:
            return [
                None if spec is None else view(name.format(index)) for index, spec in enumerate(layout.observations)
            ]

        self.banks = [leaves(_bank_name(bank)) for bank in range(layout.banks)]
        self.bank_bytes: list[NDArray[np.uint8]] = [
            np.ndarray((nbytes,), np.uint8, buffer, start) for start, nbytes in map(layout.bank, range(layout.banks))
        ]
        self.rider_codes: NDArray[np.int32] = np.zeros(0, np.int32)
        self.rider_cells: NDArray[np.float64] = np.zeros((0, RIDER_CELLS))
        if layout.has_riders:
            self.rider_codes, self.rider_cells = view("rider_codes"), view("rider_cells")
        self.finals = leaves("final{}")
        self.buffer = buffer
        self._actions = view("actions")
        self._actions_by_code: dict[int, NDArray[Any]] = {}

    def actions(self, code: int) -> NDArray[Any]:
        """The region of the actions as ``(num_envs, *shape)`` of ``ACTION_DTYPES[code]``."""
        try:
            return self._actions_by_code[code]
        except KeyError:
            spec = self.layout.action
            assert spec is not None
            view: NDArray[Any] = np.ndarray((self.layout.num_envs, *spec.shape), ACTION_DTYPES[code], self._actions)
            return self._actions_by_code.setdefault(code, view)
