"""One random life of a batch of environments, from its construction to what it leaves.

A seed decides everything but the timing. Each act is done to the face with workers, then to the same face with
`num_workers=0`, and all that came back is compared. Between the two it is found out which of the ordered faults have
happened, and the oracle is told.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fastvec import errors
from fastvec._baselines_adapter import EitherEnv
from fastvec._core.config import EngineConfig
from soak.compare import difference
from soak.envs import Plan, later_options
from soak.faces import FACES, Act, BaselinesFace, Face, GymnasiumFace, attempt
from soak.faults import HANGING, WITHIN, Fault, Orders
from soak.oracle import Oracle
from soak.spaces import random_action_space, random_object, random_space

#: Seconds in which any single act has to end; a hang is found by `step_timeout` before.
LIMIT = 60.0
#: Seconds after which a step hangs, in scenarios where some do.
STEP_TIMEOUT = 2.0
CLOSE_TIMEOUT = 2.0
#: `close()` asks, waits for `close_timeout`, terminates, and kills, with a second for each.
CLOSING = CLOSE_TIMEOUT + 6.0
RECYCLES = "max_episodes_per_worker" in inspect.signature(EngineConfig.resolve).parameters


class Hang(BaseException):
    """An act did not end in time."""


class Wrong(Exception):
    """Something that came back was not what it had to be."""


@dataclass
class Outcome:
    """What became of a scenario.

    Attributes:
        seed: Its seed.
        plan: What was drawn, in words.
        steps: Steps of the batch.
        env_steps: Steps of single environments.
        acts: What was done, by the first word of its name.
        values: Results compared.
        faults: Survived, by kind and place and `on_failure`.
        restarts: Workers that were replaced after a fault.
        recycled: Workers that were replaced without one.
        wrong: Values that were not as expected.
        hangs: Acts that did not end.
        left: What was left behind.
        broken: Exceptions of this program itself.
        seconds: How long it took.
    """

    seed: int
    plan: str = ""
    steps: int = 0
    env_steps: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    values: int = 0
    faults: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    restarts: int = 0
    recycled: int = 0
    wrong: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        return bool(self.wrong or self.hangs or self.left or self.broken)


class Scenario:
    """See the module's docstring.

    Args:
        seed: Decides what is drawn.
        perturbed: For a test of this program: the step whose reward is changed before it is compared.
    """

    def __init__(self, seed: int, perturbed: int | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.outcome = Outcome(seed)
        self.perturbed = perturbed
        self.recent: collections.deque[str] = collections.deque(maxlen=12)
        self.dead: list[Fault] = []
        self.draw()

    def draw(self) -> None:
        """All that is fixed for the scenario's life."""
        rng = self.rng
        kind = FACES[rng.choice(3, p=[0.4, 0.4, 0.2])]
        self.num_envs = int(rng.integers(1, 13))
        self.on_failure = ["raise", "restart"][rng.integers(2)]
        self.hangs = bool(rng.random() < 0.15)
        self.finite = bool(rng.random() < 0.3)
        observation_space = random_space(rng) if rng.random() < 0.95 else random_object(rng)
        action_space = random_action_space(rng, nested=kind.nested_actions)
        self.face: Face = kind(rng, self.num_envs, action_space)
        plan = Plan(
            observation_space=observation_space,
            action_space=action_space,
            env_id=0,
            seed=int(rng.integers(2**31)),
            folder=None,
            finite=self.finite,
            infos=int(rng.choice(3, p=[0.15, 0.35, 0.5])),
            horizon=int(rng.choice([1, 4, 20, 200])),
            old_api=kind is BaselinesFace and bool(rng.random() < 0.5),
        )
        self.plans = [dataclasses.replace(plan, env_id=i, seed=plan.seed + i) for i in range(self.num_envs)]
        self.common = self.face.options() | {
            "check_nan": self.finite and bool(rng.random() < 0.5),
            "reset_options": [None, None, "keep", later_options][rng.integers(4)] if kind.seeded else None,
        }
        self.options = self.parallel_options()
        self.length = int(rng.choice([150, 400, 1000, 3000], p=[0.3, 0.4, 0.2, 0.1]))
        mean = 4.0 if self.on_failure == "restart" else 1.0
        # In which steps a fault is ordered, or done from outside.
        self.due = sorted(int(n) for n in rng.integers(2, self.length, rng.poisson(mean)))
        self.outcome.plan = (
            f"{kind.name}, {self.num_envs} envs, {observation_space}, {action_space}, {self.common}, {self.options}, "
            f"infos {plan.infos}, horizon {plan.horizon}, old API {plan.old_api}, {self.length} steps"
        )

    def parallel_options(self) -> dict[str, Any]:
        rng = self.rng
        options: dict[str, Any] = {
            "start_method": ["fork", "forkserver", "spawn"][rng.choice(3, p=[0.6, 0.35, 0.05])],
            "on_failure": self.on_failure,
            "close_timeout": CLOSE_TIMEOUT,
            "start_timeout": LIMIT,
            "max_restarts": 1000,
        }
        if self.hangs:
            options |= {"step_timeout": STEP_TIMEOUT, "reset_timeout": 2 * STEP_TIMEOUT}
        most = min(self.num_envs, 6)
        if rng.random() < 0.5:
            options["num_workers"] = int(rng.integers(1, most + 1))
        else:
            options["in_series"] = int(rng.integers(-(-self.num_envs // most), self.num_envs + 1))
        if RECYCLES and rng.random() < 0.3:
            options["max_episodes_per_worker"] = int(rng.integers(2, 20))
        return options

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
        there = [dataclasses.replace(plan, folder=folder) for plan in self.plans]
        self.subject = self.limited("construction", self.face.make, there, **self.options, **self.common)
        self.reference = self.face.make(list(self.plans), num_workers=0, **self.common)
        prepare = EitherEnv if isinstance(self.face, BaselinesFace) else lambda env: env
        self.oracle = Oracle(self.reference, lambda i: prepare(self.plans[i]()))
        self.slices: list[range] = [worker.env_ids for worker in self.subject._engine._workers]
        self.pids = self.current_pids()

    def current_pids(self) -> list[int]:
        return [worker.process.pid for worker in self.subject._engine._workers]

    def worker_of(self, env: int) -> int:
        return next(index for index, env_ids in enumerate(self.slices) if env in env_ids)

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
        if isinstance(self.face, GymnasiumFace) and self.on_failure == "raise":
            acts = [*acts, (2.0, self.face.polled_step)]
        weights = np.array([weight for weight, _ in acts], float)
        weights /= weights.sum()
        alive = True
        while alive and self.outcome.steps < self.length:
            self.reset_who_has_ended()
            if self.due and self.outcome.steps >= self.due[0]:
                self.due.pop(0)
                alive = self.fail()
                continue
            act = acts[self.rng.choice(len(acts), p=weights)][1]()
            if not self.allowed(act):
                continue
            alive = self.do(act)

    def allowed(self, act: Act) -> bool:
        """A step that is dropped must not hide in which reset a fault has happened."""
        if self.dead and ("complain" in act.name or "nothing" in act.name):
            return False  # two failures at once, of which either may be raised
        return not (act.drops and any(fault.where == "reset" for fault in self.orders.waiting))

    def reset_who_has_ended(self) -> None:
        """Where nobody resets unasked."""
        if self.common.get("autoreset_mode") == "Disabled" and self.reference._ended.any():
            assert isinstance(self.face, GymnasiumFace)
            ended = frozenset(int(i) for i in np.flatnonzero(self.reference._ended))
            self.do(self.face.masked_reset(ended))

    def fail(self) -> bool:
        """Order a fault, or do one, and then do what it happens in. False where life has ended with it."""
        rng, env = self.rng, self.face.anyone()
        place = ["step", "late step", "reset", "call", "outside", "harmless"][
            rng.choice(6, p=[0.3, 0.1, 0.15, 0.15, 0.2, 0.1])
        ]
        if place == "harmless":
            return self.delay(env)
        if place == "outside":
            return self.kill_idle(env) if rng.random() < 0.5 else self.kill_in_a_step(env)
        kinds = list(WITHIN[place])
        if self.hangs and place == "step":
            kinds += HANGING
        if self.common["check_nan"] and place == "step":
            kinds += ["nan"] * 3
        self.orders.give(Fault(env, place, str(rng.choice(kinds))))
        if self.on_failure == "restart" and place != "call" and rng.random() < 0.25:
            self.worsen(env)
        if place == "call":
            return self.do(self.face.calling(env))
        if place == "reset" and rng.random() < 0.7:
            return self.do(self.resetting(env))
        # A reset may take some steps to come.
        return True

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

    def delay(self, env: int) -> bool:
        """A slow step, or a large reply, is no fault and must not become one."""
        if self.rng.random() < 0.5:
            return self.do(self.face.calling(env, size=5_000_000))
        self.orders.give(Fault(env, "step", "slow"))
        if isinstance(self.face, GymnasiumFace) and self.on_failure == "raise":
            return self.do(self.face.polled_step())
        return self.do(self.face.step_in_two())

    def kill_idle(self, env: int) -> bool:
        """From outside, between two acts; who notices is a matter of the next ones."""
        worker = self.worker_of(env)
        if all(self.worker_of(other.env) != worker for other in self.dead):
            self.kill(self.pids[worker])
            self.dead.append(Fault(env, "outside", "killed idle"))
        return True

    def kill_in_a_step(self, env: int) -> bool:
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

        return self.do(Act("step in which a worker is killed", do, steps=1))

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

    def do(self, act: Act) -> bool:
        """Do it to both, and compare. False where life has ended with an error that had to come."""
        self.recent.append(act.name)
        self.outcome.acts[act.name.split(" ")[0].rstrip(",")] += 1
        found = self.limited(act.name, act.do, self.subject)
        faults = self.noticed(act) + [fault for fault in self.orders.happened() if fault.how != "slow"]
        self.recent.extend(f"({fault.how} of env {fault.env}, {fault.where})" for fault in faults)
        self.outcome.steps += act.steps
        self.outcome.env_steps += act.steps * self.num_envs
        for fault in faults:
            self.outcome.faults[fault.how, fault.where, self.on_failure] += 1
        lethal = [fault for fault in faults if fault.where != "call" or fault.deadly]
        if lethal and self.on_failure == "raise":
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
        for env_ids in self.slices:
            if set(env_ids) <= act.resets:
                self.oracle.forget(env_ids)
        self.check_processes({self.worker_of(fault.env) for fault in lethal})
        return True

    def noticed(self, act: Act) -> list[Fault]:
        """Of those that were killed while idle, those whose death shows in an act."""
        found = []
        for fault in self.dead:
            env_ids = set(self.slices[self.worker_of(fault.env)])
            if act.steps or env_ids & (act.resets | act.calls):
                found.append(fault)
        self.dead = [fault for fault in self.dead if fault not in found]
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
            found.setdefault(self.worker_of(fault.env), []).append(fault)
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
        complaints = [fault.complaint(error, self.worker_of(fault.env)) for fault in faults for error in raised]
        if all(complaints):
            raise Wrong("; ".join(filter(None, complaints)))

    def compare(self, act: Act, found: list[Any], expected: list[Any]) -> None:
        self.outcome.values += len(expected)
        if self.perturbed is not None and act.steps and self.outcome.steps >= self.perturbed:
            self.perturbed = None
            expected = [*expected, "perturbed"]
        said = difference(found, expected)
        if said is not None:
            raise Wrong(f"{act.name}: {said}")

    def check_processes(self, lost: set[int]) -> None:
        """Workers are replaced when they are lost, and else only where that was asked for."""
        pids = self.current_pids()
        for worker, (before, now) in enumerate(zip(self.pids, pids, strict=True)):
            if worker in lost and before == now:
                raise Wrong(f"worker {worker} was lost and is still there")
            if worker not in lost and before != now:
                if "max_episodes_per_worker" not in self.options:
                    raise Wrong(f"worker {worker} was replaced without a reason")
                self.outcome.recycled += 1
        self.pids = pids

    def end(self) -> None:
        """Close in whatever state, within its limit; nothing can be used afterwards."""
        if self.subject is None:
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
            self.outcome.faults[fault.how, "close", self.on_failure] += 1
        self.subject.close()
        self.reference.close()
        actions = self.face.actions()
        found, expected = (attempt(vec.step_async, actions) for vec in (self.subject, self.reference))
        said = difference(found, expected)
        if said is not None or "Close" not in type(found).__name__:
            self.outcome.wrong.append(self.told(Wrong(f"use after close(): {said or found!r}")))


def _on_alarm(*_: object) -> None:
    raise Hang("too long")
