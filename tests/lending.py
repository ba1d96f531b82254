"""Leases without mercy: every batch is lent, however small, and a bank is spoilt as soon as nobody may look at it."""

from __future__ import annotations

from fastvec._core import crew, leases, pool, serial

#: NaN in floating observations, and a wrong value in all others.
GARBAGE = 0xFF


class SpoiltBanks(leases.Banks):
    """Banks with garbage in each that comes back, and in each that is to be written anew."""

    def advance(self, *, keep):
        before = self.current
        super().advance(keep=keep)
        if not keep:
            self._spoil(self.current)
        if before != self.current and not self._lent[before]:
            self._spoil(before)

    def _give_back(self, bank):
        super()._give_back(bank)
        if bank != self.current and not self._lent[bank]:
            self._spoil(bank)

    def _spoil(self, bank):
        self._views.bank_bytes[bank][...] = GARBAGE


def lend_everything(monkeypatch, *, whatever_copy_is=False):
    """Have all engines that are made from now on lend, and spoil.

    Args:
        monkeypatch: Pytest's.
        whatever_copy_is: Also those that are told to copy.
    """
    monkeypatch.setattr(leases, "LEAST_BYTES", 0)
    for module in (crew, serial):
        monkeypatch.setattr(module, "Banks", SpoiltBanks)
    if whatever_copy_is:
        resolved = leases.banks_for
        for module in (pool, serial):
            monkeypatch.setattr(
                module, "banks_for", lambda description, num_envs, copy: resolved(description, num_envs, copy=False)
            )
