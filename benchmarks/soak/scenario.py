"""One random life of a batch of environments, from its construction to what it leaves.

A seed decides everything but the timing. Each act is done to the face with workers, then to the same face with
`num_workers=0`, and all that came back is compared. Between the two it is found out which of the ordered faults have
happened, and the oracle is told.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fastvec import errors
from soak.acts import Act, attempt
from soak.compare import difference
from soak.draft import CLOSE_TIMEOUT, LIMIT, draft
from soak.faces import GymnasiumFace
from soak.faults import HANGING, WITHIN, Fault, Orders
from soak.mischief import Mischief
from soak.oracle import Oracle, Place
from soak.outcome import Outcome

#: `close()` asks, waits for `close_timeout`, terminates, and kills, with a second for each.
CLOSING = CLOSE_TIMEOUT + 6.0


class Hang(BaseException):
    """An act did not end in time."""


class Wrong(Exception):
    """Something that came back was not what it had to be."""


class Scenario:
    """See the module's docstring.

    Args:
        seed: Decides what is drawn.
        most_steps: Of its life.
        perturbed: For a test of this program: the step from which on a bit of what is expected as a reward is flipped.
    """

    def __init__(self, seed: int, most_steps: int, perturbed: int | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.outcome = Outcome(seed)
        self.perturbed = perturbed
        self.recent: collections.deque[str] = collections.deque(maxlen=12)
        self.draft = draft(self.rng, most_steps)
        self.face = self.draft.face
        self.due = list(self.draft.due)
        self.outcome.plan = str(self.draft)

    def run(self) -> Outcome:
        """Live it, and say what became of it."""
        began = time.monotonic()
        folder = tempfile.mkdtemp(prefix="orders-")
        self.orders = Orders(Path(folder))
        self.subject: Any = None
        self.reference: Any = None
        before = signal.signal(signal.SIGALRM, _on_alarm)
        try:
            self.start(folder)
            self.live()
        except Wrong as wrong:
            self.outcome.wrong.append(self.told(wrong))
        except Hang as hang:
            self.outcome.hangs.append(self.told(hang))
        finally:
            try:
                self.end()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
                shutil.rmtree(folder, ignore_errors=True)
                self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def told(self, error: BaseException) -> str:
        return f"{error} (after {self.outcome.steps} steps; the last acts: {'; '.join(self.recent)})"

    def start(self, folder: str) -> None:
        there = [dataclasses.replace(plan, folder=folder) for plan in self.draft.plans]
        self.subject = self.limited("construction", self.face.make, there, **self.draft.options, **self.draft.common)
        places = [Place(plan) for plan in self.draft.plans]
        factories = [functools.partial(_the_same, place) for place in places]
        self.reference = self.face.make(factories, num_workers=0, **self.draft.common)
        self.oracle = Oracle(self.reference, places, self.draft.common["reset_options"])
        self.slices: list[range] = self.subject._engine._config.slices()
        self.pids = self.current_pids()
        self.mischief = Mischief(self.rng, self.draft, self.orders, self.subject, self.slices)

    def current_pids(self) -> list[int]:
        return [worker.process.pid for worker in self.subject._engine._pool.workers]

    def limited(self, name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        """What a function returns, if it does so in time."""
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        try:
            return function(*args, **kwargs)
        except Hang:
            raise Hang(f"{name} did not end within {LIMIT:.0f} s") from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def live(self) -> None:
        """A reset, then acts until there were enough steps, or one fault too much."""
        self.do(self.face.first_reset())
        acts = self.face.acts()
        if isinstance(self.face, GymnasiumFace) and not self.draft.restarts:
            acts = [*acts, (2.0, self.face.polled_step)]
        weights = np.array([weight for weight, _ in acts], float)
        weights /= weights.sum()
        alive = True
        while alive and self.outcome.steps < self.draft.length:
            self.reset_who_has_ended()
            if self.due and self.outcome.steps >= self.due[0]:
                self.due.pop(0)
                act = self.mischief.next(self.pids)
            else:
                act = acts[self.rng.choice(len(acts), p=weights)][1]()
            if act is not None and self.allowed(act):
                alive = self.do(act)

    def allowed(self, act: Act) -> bool:
        """Whether it is known what has to come of it."""
        if self.mischief.dead and ("complain" in act.name or "nothing" in act.name):
            return False  # two failures at once, of which either may be raised
        # A step that is dropped must not hide in which reset a fault has happened.
        return not (act.drops and any(fault.where == "reset" for fault in self.orders.waiting))

    def reset_who_has_ended(self) -> None:
        """Where nobody resets unasked."""
        if self.draft.common.get("autoreset_mode") == "Disabled" and self.reference._ended.any():
            assert isinstance(self.face, GymnasiumFace)
            ended = frozenset(int(i) for i in np.flatnonzero(self.reference._ended))
            self.do(self.face.masked_reset(ended))

    def do(self, act: Act) -> bool:
        """Do it to both, and compare. False where life has ended with an error that had to come."""
        self.recent.append(act.name)
        self.outcome.acts[act.name.split(" ")[0].rstrip(",")] += 1
        found = self.limited(act.name, act.do, self.subject)
        faults = self.noticed(act) + [fault for fault in self.orders.happened() if fault.how != "slow"]
        self.recent.extend(f"({fault.how} of env {fault.env}, {fault.where})" for fault in faults)
        self.outcome.steps += act.steps
        self.outcome.env_steps += act.steps * self.face.num_envs
        for fault in faults:
            self.outcome.faults[fault.how, fault.where, self.draft.options["on_failure"]] += 1
        lethal = [fault for fault in faults if fault.where != "call" or fault.deadly]
        if lethal and not self.draft.restarts:
            self.check_error(found, lethal)
            self.check_broken(lethal)
            return False
        # What happens in a call does so after everything else, and breaks nothing but the call.
        only_calls = not (act.steps or act.resets)
        in_call = [fault for fault in faults if fault.where == "call" or only_calls]
        self.tell_oracle(act, [fault for fault in lethal if fault not in in_call])
        expected = act.do(self.reference)
        if in_call:
            self.check_error(found, in_call)
            for worker, losses in self.by_worker([fault for fault in in_call if fault in lethal]).items():
                self.oracle.lose(self.slices[worker], losses)
        else:
            self.compare(act, found, expected)
        self.check_processes({self.mischief.worker_of(fault.env) for fault in lethal})
        return True

    def noticed(self, act: Act) -> list[Fault]:
        """Of those that were killed while idle, those whose death shows in an act."""
        found = []
        for fault in self.mischief.dead:
            env_ids = set(self.slices[self.mischief.worker_of(fault.env)])
            if act.steps or env_ids & (act.resets | act.calls):
                found.append(fault)
        self.mischief.dead = [fault for fault in self.mischief.dead if fault not in found]
        return found

    def tell_oracle(self, act: Act, lethal: list[Fault]) -> None:
        """Of what has happened in a step or a reset."""
        for worker, losses in self.by_worker(lethal).items():
            if act.steps:
                self.oracle.lose(self.slices[worker], losses)
            else:
                self.oracle.lost_in_reset.append((self.slices[worker], losses))

    def check_broken(self, lethal: list[Fault]) -> None:
        """After a failure nothing works but `close()`. A step that takes too long is merely late."""
        if any(fault.how in HANGING for fault in lethal):
            return
        found = self.limited("reset of what is broken", attempt, self.subject.reset)
        if not isinstance(found, errors.BrokenError):
            raise Wrong(f"reset() after {lethal} gave {found!r}")

    def by_worker(self, lethal: list[Fault]) -> dict[int, list[Fault]]:
        """In the order in which they must have happened: first the loss, then what befell the replacements."""
        order = {"outside": 0, "step": 0, "late step": 0, "call": 0, "constructor": 1, "reset": 2}
        found: dict[int, list[Fault]] = {}
        for fault in sorted(lethal, key=lambda fault: (order[fault.where], fault.env)):
            found.setdefault(self.mischief.worker_of(fault.env), []).append(fault)
        for faults in found.values():
            if faults[0].where == "constructor":  # the loss was in a reset, before
                first = next(i for i, fault in enumerate(faults) if fault.where == "reset")
                faults.insert(0, faults.pop(first))
            self.outcome.restarts += len(faults)
        return found

    def check_error(self, found: list[Any], faults: list[Fault]) -> None:
        """An error that one of the faults has to raise, blaming whom it has to."""
        raised = [result for result in found if isinstance(result, BaseException)]
        if not raised:
            raise Wrong(f"nothing was raised, though there was {faults}")
        complaints = [
            fault.complaint(error, self.mischief.worker_of(fault.env)) for fault in faults for error in raised
        ]
        if all(complaints):
            raise Wrong("; ".join(filter(None, complaints)))

    def compare(self, act: Act, found: list[Any], expected: list[Any]) -> None:
        self.outcome.values += len(expected)
        if self.perturbed is not None and self.outcome.steps >= self.perturbed:
            for result in expected:
                if act.steps and isinstance(result, tuple) and len(result) >= 4:
                    result[1].view(np.uint8)[0] ^= 1
        said = difference(found, expected)
        if said is not None:
            raise Wrong(f"{act.name}: {said}")
        if self.reference._engine.state.value == "broken":
            raise Wrong(f"{act.name} broke both: {expected}")

    def check_processes(self, lost: set[int]) -> None:
        """Workers are replaced when they are lost, and else only where that was asked for."""
        pids = self.current_pids()
        for worker, (before, now) in enumerate(zip(self.pids, pids, strict=True)):
            if worker in lost and before == now:
                raise Wrong(f"worker {worker} was lost and is still there")
            if worker not in lost and before != now:
                if not self.draft.recycles:
                    raise Wrong(f"worker {worker} was replaced without a reason")
                self.outcome.recycled += 1
        self.pids = pids

    def end(self) -> None:
        """Close in whatever state, within its limit; nothing can be used afterwards."""
        if self.reference is None:
            if self.subject is not None:
                self.subject.close()
            return
        self.orders.withdraw()
        fault = None
        if self.rng.random() < 0.2:
            fault = Fault(self.face.anyone(), "close", str(self.rng.choice(WITHIN["close"])))
            self.orders.give(fault)
        if self.rng.random() < 0.3 and not self.outcome.bad:
            attempt(self.subject.step_async, self.face.actions())
        began = time.monotonic()
        try:
            self.limited("close()", self.subject.close)
        except Hang as hang:
            self.outcome.hangs.append(self.told(hang))
            return
        seconds = time.monotonic() - began
        if seconds > CLOSING:
            self.outcome.hangs.append(self.told(Hang(f"close() took {seconds:.1f} s")))
        if fault is not None and self.orders.happened():
            self.outcome.faults[fault.how, "close", self.draft.options["on_failure"]] += 1
        self.subject.close()
        self.reference.close()
        actions = self.face.actions()
        found, expected = (attempt(vec.step_async, actions) for vec in (self.subject, self.reference))
        said = difference(found, expected)
        if said is not None or "Close" not in type(found).__name__:
            self.outcome.wrong.append(self.told(Wrong(f"use after close(): {said or found!r}")))


def _the_same(place: Place) -> Place:
    return place


def _on_alarm(*_: object) -> None:
    raise Hang("too long")
