"""The worker processes of one engine: start, handshake, liveness, stop.

A :class:`WorkerPool` owns its processes, their channels, the life line and the shared block. It
starts all workers side by side, and ends them all in bounded time whatever state they are in.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastvec._core.channel import Channel, Gone, deadline_after, remaining, wait_for
from fastvec._core.config import EngineConfig
from fastvec._core.factories import modules_in, pickle_payload, strings_in
from fastvec._core.forkserver import ForkServer, ServerKey
from fastvec._core.handle import WorkerHandle, death_of, waiting_for
from fastvec._core.launch import WorkerProcess, fork_worker, import_path, spawn_process, wait_for_exit
from fastvec._core.layout import BatchLayout, BatchViews
from fastvec._core.lineage import LifeLine
from fastvec._core.protocol import Adapter, Opcode, RemoteFailure, WorkerInit, WorkerPayload, dumps
from fastvec._core.shm import SharedBlock
from fastvec._core.stacks import StackFile
from fastvec._core.structure import EnvDescription
from fastvec._core.sync import semaphores_work
from fastvec._core.topology import pin_all_threads
from fastvec.errors import SpaceMismatchError, WorkerTimeoutError

__all__ = ["WorkerPool"]

_LOGGER = logging.getLogger("fastvec")

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
#: A worker that finds them takes itself for a rank of the program's MPI job.
_MPI_PREFIXES = ("OMPI_", "PMI_", "PMIX_")
#: After SIGTERM, and again after SIGKILL, this long for a worker to be gone.
_KILL_GRACE = 1.0
#: Where the start fails, this long for environments that nobody has used yet to close.
_UNUSED_GRACE = 1.0
_BASE_PRELOAD = ("numpy", "cloudpickle", "fastvec._core.worker")


class WorkerPool:
    """The workers of one engine.

    Args:
        config: Validated options.
        env_fns: One factory an environment.
        adapter: What the face adds.
    """

    def __init__(self, config: EngineConfig, env_fns: Sequence[Callable[[], Any]], adapter: Adapter) -> None:
        self._config = config
        self._adapter = adapter
        self._owner = os.getpid()
        self._asked_to_close = False
        self._mask_before: dict[int, set[int]] | None = None
        self._server: ForkServer | None = None
        self._block: SharedBlock | None = None
        self._lifeline: LifeLine | None = None
        self.workers: list[WorkerHandle] = []
        self._inits: list[WorkerInit] = []
        self.views: BatchViews | None = None
        deadline = deadline_after(config.start_timeout)
        try:
            if sys.platform != "win32":
                self._lifeline = LifeLine()
            self._start(env_fns, deadline)
            self.description = self._agreed(self.workers, self._gather(self.workers, deadline))
            self.views = self._share(deadline)
            if config.learner_cpus is not None:
                self._mask_before = pin_all_threads(config.learner_cpus)
        except BaseException:
            self.stop(min(config.close_timeout, _UNUSED_GRACE))
            raise

    def _start(self, env_fns: Sequence[Callable[[], Any]], deadline: float | None) -> None:
        config, slices = self._config, self._config.slices()
        payloads: list[Any] = [
            WorkerPayload([env_fns[i] for i in ids], self._adapter, config.reset_options) for ids in slices
        ]
        if config.start_method != "fork":
            payloads = [pickle_payload(payload) for payload in payloads]
        environs = [self._environ(config.worker_env[worker]) for worker in range(len(slices))]
        if config.start_method == "forkserver":
            self._server = ForkServer.acquire(self._server_key(payloads))
        for worker, (env_ids, payload, environ) in enumerate(zip(slices, payloads, environs, strict=True)):
            init = WorkerInit(
                worker=worker,
                env_ids=env_ids,
                environ=environ,
                sys_path=tuple(import_path()),
                argv=tuple(sys.argv),
                cwd=os.getcwd(),
                cpus=config.cpus[worker] if config.cpus else None,
                threads=config.threads_per_worker,
                unsafe_casts=config.unsafe_casts,
                check_nan=config.check_nan,
                autoreset_mode=config.autoreset_mode,
                spins=config.workers_spin,
                payload=payload,
            )
            if config.restart:
                self._inits.append(init)
            self.workers.append(self._start_one(init, deadline))

    def _start_one(self, init: WorkerInit, deadline: float | None) -> WorkerHandle:
        stacks = StackFile()  # before there is a process: descriptors may run out
        try:
            process, channel = self._launch(init, deadline)
        except BaseException:
            stacks.close()
            raise
        worker = WorkerHandle(init.worker, init.env_ids, process, channel, stacks)
        lifelines = () if self._lifeline is None else (self._lifeline.read_fd,)
        try:
            with self._reporting(worker, "start"):
                channel.send(
                    b"" if self._config.start_method == "fork" else pickle.dumps(init),
                    fds=(worker.stacks.fd, *lifelines),
                    deadline=deadline,
                    sentinel=process.sentinel,
                )
        except BaseException:
            self._end([worker], 0.0)
            raise
        return worker

    def _launch(self, init: WorkerInit, deadline: float | None) -> tuple[WorkerProcess, Channel]:
        if self._server is not None:
            try:
                return self._server.fork(deadline)
            except TimeoutError:
                missing = range(init.env_ids.start, self._config.num_envs)
                raise WorkerTimeoutError(
                    f"the fork server did not start the worker of envs {list(init.env_ids)} within "
                    f"start_timeout={self._config.start_timeout} s",
                    env_indices=tuple(missing),
                ) from None
        if self._config.start_method == "fork":
            return fork_worker(init)
        return spawn_process("fastvec._core.worker:run_worker", init.environ)

    def _environ(self, worker_env: Mapping[str, str]) -> dict[str, str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_MPI_PREFIXES)}
        if self._config.threads_per_worker is not None:
            environ |= dict.fromkeys(_THREAD_VARIABLES, str(self._config.threads_per_worker))
        return environ | dict(worker_env)

    def _server_key(self, payloads: Sequence[bytes]) -> ServerKey:
        config = self._config
        modules = dict.fromkeys(_BASE_PRELOAD)
        # Variables that differ between workers must be set before a user's module is imported: only workers can then.
        if config.worker_env_is_shared:
            for payload in dict.fromkeys(payloads):
                modules |= dict.fromkeys(modules_in(payload))
                modules |= dict.fromkeys(self._adapter.modules_for(strings_in(payload)))
            modules |= dict.fromkeys(config.preload)
            environ = self._environ(config.worker_env[0])
        else:
            environ = self._environ({})
        return ServerKey.of(tuple(modules), environ)

    def _gather(self, workers: Sequence[WorkerHandle], deadline: float | None) -> list[Any]:
        """The next message of some workers, in any order; raises as soon as one has failed."""
        messages: dict[int, Any] = {}
        began, lines = time.monotonic(), 0
        while True:
            # First what has been read already, perhaps in looking for the end: no descriptor tells of it.
            for worker in workers:
                if worker.index not in messages and worker.channel.poll():
                    message = pickle.loads(worker.channel.receive())
                    if isinstance(message, RemoteFailure):
                        raise message.exception()
                    messages[worker.index] = message
            waiting = [worker for worker in workers if worker.index not in messages]
            if not waiting:
                break
            watched = [worker.channel.fileno() for worker in waiting]
            watched += [w.process.sentinel for w in waiting if w.process.sentinel is not None]
            line = None if self._config.watchdog is None else began + self._config.watchdog * 2**lines
            if not wait_for(watched, remaining(_first(deadline, line))):
                if deadline is not None and time.monotonic() >= deadline:
                    raise self._start_timeout(waiting)
                lines += 1
                waited = time.monotonic() - began
                _LOGGER.warning("start-up has not finished after %.0f s: %s", waited, waiting_for(waiting))
            for worker in waiting:
                ended = worker.process.poll() is not None or worker.channel.at_end()
                if ended and not worker.channel.poll():
                    raise death_of(worker, "start-up")
        return [messages[worker.index] for worker in workers]

    def _agreed(
        self, workers: Sequence[WorkerHandle], reports: list[tuple[EnvDescription, list[str]]]
    ) -> EnvDescription:
        notes = dict.fromkeys(note for _, notes in reports for note in notes)
        if notes:
            warnings.warn("; ".join(notes), RuntimeWarning, stacklevel=6)
        first = reports[0][0]
        for worker, (other, _) in zip(workers, reports, strict=True):
            difference = self._adapter.difference(first, other)
            if difference is not None:
                raise SpaceMismatchError(f"env 0 and env {worker.env_ids[0]} {difference}")
        return first

    def _share(self, deadline: float | None) -> BatchViews:
        """Make the block and hand it out."""
        layout = BatchLayout.of(self.description, self._config.num_envs, self._config.num_workers)
        self._block = SharedBlock.create(layout.nbytes)
        views = BatchViews(layout, self._block.buffer)
        self._hand_out(self.workers, views, deadline)
        if self._config.copy:  # else a forked child may still look at an observation
            self._block.keep_from_children()
        if not self._config.restart:
            self._block.close()
        return views

    def _hand_out(self, workers: Sequence[WorkerHandle], views: BatchViews, deadline: float | None) -> None:
        assert self._block is not None
        with_semaphores = semaphores_work()
        # Workers write in the order that the parent reads in: spaces are equal whatever the order of their keys.
        message = dumps((views.layout, self.description, with_semaphores))
        for worker in workers:
            worker.attach(views, with_semaphores=with_semaphores)
            with self._reporting(worker, "start-up"):
                worker.channel.send(message, fds=(self._block.fd,), deadline=deadline, sentinel=worker.process.sentinel)
        self._gather(workers, deadline)

    def replace(self, index: int, grace: float) -> WorkerHandle:
        """Another worker in the place of one, with environments newly built and not yet reset.

        Args:
            index: Whose place it takes; that one is ended if it still runs.
            grace: Seconds that it has to close its environments, 0 for none.
        """
        assert self.views is not None
        old = self.workers[index]
        if grace:
            self._ask(old)
        self._end([old], grace)
        deadline = deadline_after(self._config.start_timeout)
        worker = self.workers[index] = self._start_one(self._inits[index], deadline)
        (report,) = self._gather([worker], deadline)
        difference = self._adapter.difference(self.description, report[0])
        if difference is not None:
            raise SpaceMismatchError(f"the environments and those of a new worker {index} {difference}")
        self._hand_out([worker], self.views, deadline)
        return worker

    @contextlib.contextmanager
    def _reporting(self, worker: WorkerHandle, command: str) -> Iterator[None]:
        try:
            yield
        except Gone:
            # It may have said why before it died.
            if worker.channel.poll():
                message = pickle.loads(worker.channel.receive())
                if isinstance(message, RemoteFailure):
                    raise message.exception() from None
            raise death_of(worker, command) from None
        except TimeoutError:
            raise self._start_timeout([worker]) from None

    def _start_timeout(self, workers: Sequence[WorkerHandle]) -> WorkerTimeoutError:
        return WorkerTimeoutError(
            f"the environments were not ready within start_timeout={self._config.start_timeout} s: "
            + waiting_for(workers),
            env_indices=tuple(i for worker in workers for i in worker.env_ids),
        )

    def stop(self, grace: float | None = None) -> None:
        """End every worker: ask, wait for ``grace`` seconds (``close_timeout``), terminate, kill. Idempotent."""
        if os.getpid() != self._owner:
            return
        self.ask_to_close()
        self._end(self.workers, self._config.close_timeout if grace is None else grace)
        if self._lifeline is not None:
            self._lifeline.close()
        if self._block is not None:
            self._block.close()
        if self._server is not None:
            self._server.release()
            self._server = None
        if self._mask_before is not None:
            pin_all_threads(self._mask_before)
            self._mask_before = None
        self.workers = []
        self.views = None

    def _end(self, workers: Sequence[WorkerHandle], grace: float) -> None:
        """Wait for workers to end, for some seconds; then terminate them, then kill them."""
        deadline = time.monotonic() + grace
        workers = [worker for worker in workers if not worker.released]
        running: list[WorkerProcess] = [worker.process for worker in workers]
        while running and time.monotonic() < deadline:
            for worker in workers:  # a worker may be stuck in sending what nobody wants any more
                worker.channel.discard()
            running = wait_for_exit(running, min(0.05, max(0.0, deadline - time.monotonic())))
        for signal_number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            for process in running:
                process.kill(signal_number)
            running = wait_for_exit(running, _KILL_GRACE) if running else running
        for worker in workers:
            worker.release()

    def ask_to_close(self) -> None:
        """Tell every worker, once, to close its environments and end; does not wait."""
        if self._asked_to_close:
            return
        self._asked_to_close = True
        for worker in self.workers:
            self._ask(worker)

    def _ask(self, worker: WorkerHandle) -> None:
        if worker.released:
            return
        with contextlib.suppress(Gone, TimeoutError, OSError):
            if hasattr(worker, "command_bell"):
                worker.command(Opcode.CLOSE)
            else:
                worker.channel.close()


def _first(one: float | None, other: float | None) -> float | None:
    return min((time for time in (one, other) if time is not None), default=None)
