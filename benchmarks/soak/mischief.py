"""Which fault comes next, and how it comes about."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import psutil

from soak.acts import Act, attempt
from soak.draft import Draft
from soak.faces import GymnasiumFace
from soak.faults import HANGING, WITHIN, Fault, Orders


class Mischief:
    """Orders faults, and kills from outside.

    Args:
        rng: What decides.
        draft: What the scenario is like.
        orders: Where to order.
        subject: The face with workers.
        slices: The environments of each.
    """

    def __init__(
        self, rng: np.random.Generator, draft: Draft, orders: Orders, subject: Any, slices: list[range]
    ) -> None:
        self.rng, self.draft, self.orders, self.subject, self.slices = rng, draft, orders, subject, slices
        self.face = draft.face
        self.pids: list[int] = []
        #: Workers that were killed while they were idle, which nobody has noticed.
        self.dead: list[Fault] = []

    def worker_of(self, env: int) -> int:
        return next(index for index, env_ids in enumerate(self.slices) if env in env_ids)

    def next(self, pids: list[int]) -> Act | None:
        """Order a fault, or do one; what it happens in, if that is to be at once.

        Args:
            pids: Of the workers.
        """
        self.pids = pids
        rng, env = self.rng, self.face.anyone()
        place = ["step", "late step", "reset", "call", "outside", "harmless"][
            rng.choice(6, p=[0.3, 0.1, 0.15, 0.15, 0.2, 0.1])
        ]
        if place == "harmless":
            return self.delay(env)
        if place == "outside":
            if self.draft.recycles:
                return None  # whom it meets is a matter of time: the worker, its successor, or one that is leaving
            return self.kill_idle(env) if rng.random() < 0.5 else self.kill_in_a_step(env)
        kinds = list(WITHIN[place])
        if self.draft.hangs and place == "step":
            kinds += HANGING
        if self.draft.common["check_nan"] and place == "step":
            kinds += ["nan"] * 3
        self.orders.give(Fault(env, place, str(rng.choice(kinds))))
        if self.draft.restarts and not self.draft.recycles and place != "call" and rng.random() < 0.25:
            self.worsen(env)
        if place == "call":
            return self.face.calling(env)
        if place == "reset" and rng.random() < 0.7:
            return self.resetting(env)
        # A reset may take some steps to come.
        return None

    def worsen(self, env: int) -> None:
        """The replacement fails as well."""
        other = int(self.rng.choice(self.slices[self.worker_of(env)]))
        where = ["constructor", "reset"][self.rng.integers(2)]
        fault = Fault(other, where, str(self.rng.choice(WITHIN[where])))
        if all((waiting.env, waiting.where) != (other, where) for waiting in self.orders.waiting):
            self.orders.give(fault)

    def resetting(self, env: int) -> Act:
        if isinstance(self.face, GymnasiumFace) and self.rng.random() < 0.5:
            return self.face.masked_reset(frozenset([env]))
        return self.face.first_reset()

    def delay(self, env: int) -> Act | None:
        """A slow step, or a large reply, is no fault and must not become one."""
        if self.rng.random() < 0.5:
            return self.face.calling(env, size=5_000_000)
        self.orders.give(Fault(env, "step", "slow"))
        if isinstance(self.face, GymnasiumFace) and not self.draft.restarts:
            return self.face.polled_step()
        return self.face.step_in_two()

    def kill_idle(self, env: int) -> Act | None:
        """From outside, between two acts; who notices is a matter of the next ones."""
        worker = self.worker_of(env)
        if all(self.worker_of(other.env) != worker for other in self.dead):
            self.kill(self.pids[worker])
            self.dead.append(Fault(env, "outside", "killed idle"))
        return None

    def kill_in_a_step(self, env: int) -> Act | None:
        """From outside, while an environment steps."""
        order = Fault(env, "step", "killed in a step")
        self.orders.give(order)
        actions, pid = self.face.actions(), self.pids[self.worker_of(env)]

        def do(vec: Any) -> list[Any]:
            sent = attempt(vec.step_async, actions)
            if vec is self.subject:
                deadline = time.monotonic() + 1.0
                while self.orders.waits(order) and time.monotonic() < deadline:
                    time.sleep(0.001)
                # It may have nothing to do in this step, as it is being reset, or dead.
                if self.orders.waits(order):
                    self.orders.take_back(order)
                else:
                    self.kill(pid)
            return [sent, attempt(vec.step_wait)]

        return Act("step in which a worker is killed", do, steps=1)

    @staticmethod
    def kill(pid: int) -> None:
        """And wait until it is dead."""
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            try:
                if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                    return
            except psutil.NoSuchProcess:
                return
            time.sleep(0.001)
