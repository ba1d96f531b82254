"""Observations without a copy: arrays over the block, and never written to again while anything made from them lives.

The block has several *banks*, each a place for the observations of all environments. A command writes to one of them,
the current one. Where a batch is handed out without a copy its bank is *lent*: all arrays of the batch have one object
as their base, which lives as long as they, their views, or what other libraries make of them. With it the bank comes
back. With three banks, say::

    step   written to   handed out                 lent     because
    1      bank 0       arrays over bank 0         0
    2      bank 1       arrays over bank 1         0 1      those of step 1 are alive
    3      bank 2       copies                     0 1      those of steps 1 and 2 are, and step 4 needs a bank
    4      bank 2       copies                     0 1
                        those of step 1 go           1
    5      bank 2       arrays over bank 2           1 2
    6      bank 0       ...

NOTE [whole bank]: the current bank always holds the whole batch, for who is not reset with the others, or sits a step
out. So where a command does not write all rows it either goes to the same bank or the rows go with it.

NOTE [heirs]: arrays over the block that a forked child inherits are seen by nobody here. Banks that are lent at that
time never come back.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastvec._core.layout import BatchLayout, BatchViews
from fastvec._core.lineage import tell_before_forks
from fastvec._core.structure import EnvDescription

__all__ = ["BANKS", "Banks", "banks_for"]

#: One is handed out, another is left for the next command, and two are for what a learner holds meanwhile: all hold the
#: last observations, as SB3's do, and ``before, now = now, venv.step(...)`` also those before. The lowest free bank is
#: taken, so those that a learner does not need cost memory and no time.
BANKS = 4

#: Smaller batches are copied all the same. To lend one costs 5 us whatever its size; to copy it 1.5 us, 3.5 us for
#: 64 KB, 5.5 us for 128 KB, 56 us for 0.9 MB (32 images of 84 x 84 x 4) and 330 us for 4 MB.
LEAST_BYTES = 1 << 17


def banks_for(description: EnvDescription, num_envs: int, *, copy: bool) -> int:
    """How many banks pay: one where all batches are copied."""
    nbytes = BatchLayout.of(description, num_envs, 0).bank(0)[1]
    return 1 if copy or nbytes < max(LEAST_BYTES, 1) else BANKS


class Banks:
    """Which bank is written to, which are lent. It outlives none of the arrays' memory, nor they its.

    Args:
        views: The arrays over the block.

    Attributes:
        current: The bank of the last command.
    """

    def __init__(self, views: BatchViews) -> None:
        self._views = views
        count = views.layout.banks
        self.current = self._before = 0
        self._lent, self._inherited = [False] * count, [False] * count
        # What the bases of arrays are made of, by bank.
        self._places = [(ctypes.c_char * nbytes, start) for start, nbytes in map(views.layout.bank, range(count))]
        self._offsets = views.layout.offsets_in_bank()
        returned = weakref.WeakMethod(self._give_back)
        self._callbacks = [functools.partial(_on_return, returned, bank) for bank in range(count)]
        self._bases: list[weakref.ref[Any] | None] = [None] * count
        if count > 1:
            tell_before_forks(self)

    def advance(self, *, keep: bool) -> None:
        """Have the next command write where nobody reads.

        Args:
            keep: Whether it leaves out some rows, see NOTE [whole bank].
        """
        current = self._before = self.current
        if self._lent[current]:
            bank = self._lent.index(False)
            if keep:
                self._views.bank_bytes[bank][...] = self._views.bank_bytes[current]
            self.current = bank

    def keep_rows(self, rows: slice) -> None:
        """Of the batch before, where the command that began with :meth:`advance` did not come to write them."""
        for array, before in zip(self.arrays, self._views.banks[self._before], strict=True):
            if array is not None and before is not None:
                array[rows] = before[rows]

    @property
    def arrays(self) -> list[NDArray[Any] | None]:
        """The arrays of the current bank, one a leaf; nobody else's yet."""
        return self._views.banks[self.current]

    def hand_out(self, *, lend: bool = True) -> list[NDArray[Any] | None]:
        """The current batch for a caller to keep, one array a leaf: lent where another bank is left, else copied."""
        bank = self.current
        # Handed out already, in a call that an interrupt ended: the current one is not free.
        if not lend or self._lent[bank] or self._lent.count(False) < 2:
            return [None if array is None else array.copy() for array in self.arrays]
        place, start = self._places[bank]
        base: Any = place.from_buffer(self._views.buffer, start)
        arrays = [
            None if array is None else np.ndarray(array.shape, array.dtype, base, offset)
            for array, offset in zip(self.arrays, self._offsets, strict=True)
        ]
        self._bases[bank] = weakref.ref(base, self._callbacks[bank])
        self._lent[bank] = True
        return arrays

    def before_fork(self) -> None:
        """See NOTE [heirs]."""
        self._inherited = [one or lent for one, lent in zip(self._inherited, self._lent, strict=True)]

    def _give_back(self, bank: int) -> None:
        """Nothing made from a batch is alive. Called where the last of it goes, in whichever thread."""
        if not self._inherited[bank]:
            self._lent[bank] = False


def _on_return(returned: weakref.WeakMethod[Any], bank: int, _: object) -> None:
    """Tell banks, unless they are gone; they are not kept, as they keep this."""
    give_back = returned()
    if give_back is not None:
        give_back(bank)
