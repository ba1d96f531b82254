"""How a worker of one engine is started: what it is told, and by which process.

A :class:`Starter` owns the life line and this engine's share in a fork server. The workers that it
starts belong to who asked for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastvec._core.channel import Channel, Gone
from fastvec._core.config import EngineConfig
from fastvec._core.factories import modules_in, pickle_payload, strings_in
from fastvec._core.failures import RemoteFailure
from fastvec._core.forkserver import ForkServer, ServerKey
from fastvec._core.handle import WorkerHandle, death_of, end_workers, waiting_for
from fastvec._core.launch import WorkerProcess, fork_worker, import_path, spawn_process
from fastvec._core.lineage import LifeLine
from fastvec._core.protocol import Adapter, WorkerInit, WorkerPayload
from fastvec._core.sharing import SharedMemory
from fastvec._core.stacks import StackFile
from fastvec.errors import WorkerTimeoutError

__all__ = ["Starter"]

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
_BASE_PRELOAD = ("numpy", "cloudpickle", "fastvec._core.worker")


class Starter:
    """Starts the workers of one engine, and others in their places.

    Args:
        config: Validated options.
        env_fns: One factory an environment.
        adapter: What the face adds.
    """

    def __init__(self, config: EngineConfig, env_fns: Sequence[Callable[[], Any]], adapter: Adapter) -> None:
        self._config, self._adapter = config, adapter
        self._server: ForkServer | None = None
        self._inits: list[WorkerInit] = []
        # Of each worker: the memory of shared arrays that its payload refers to.
        self._shared: list[list[SharedMemory]] = [[] for _ in range(config.num_workers)]
        self._lifeline = LifeLine() if sys.platform != "win32" else None
        try:
            slices = config.slices()
            payloads: list[Any] = [
                WorkerPayload([env_fns[i] for i in ids], adapter, config.reset_options) for ids in slices
            ]
            if config.start_method != "fork":
                pickled = [pickle_payload(payload) for payload in payloads]
                payloads, self._shared = [data for data, _ in pickled], [memories for _, memories in pickled]
            self._inits = [self._init(index, *both) for index, both in enumerate(zip(slices, payloads, strict=True))]
            if config.start_method == "forkserver":
                self._server = ForkServer.acquire(self._server_key(payloads))
        except BaseException:
            self.close()
            raise

    def start(
        self, index: int, slot: int, deadline: float | None, *, later: bool = False, succeeds: bool = False
    ) -> WorkerHandle:
        """Start a worker and tell it what it needs to know; its environments are not waited for.

        Args:
            index: Of the worker, and so of its slice.
            slot: Its rows in the block.
            deadline: When to give up.
            later: Whether the environments of that slice were in another worker before.
            succeeds: Whether that one still steps them.
        """
        init = dataclasses.replace(self._inits[index], slot=slot, later=later, succeeds=succeeds)
        stacks = StackFile()  # before there is a process: descriptors may run out
        try:
            process, channel = self._launch(init, deadline)
        except BaseException:
            stacks.close()
            raise
        worker = WorkerHandle(index, slot, init.env_ids, process, channel, stacks)
        lifelines = () if self._lifeline is None else (self._lifeline.read_fd,)
        try:
            with self.reporting(worker, "start"):
                channel.send(
                    b"" if self._config.start_method == "fork" else pickle.dumps(init),
                    fds=(worker.stacks.fd, *lifelines, *(memory.fd for memory in self._shared[index])),
                    deadline=deadline,
                    sentinel=process.sentinel,
                )
        except BaseException:
            end_workers([worker], 0.0)
            raise
        return worker

    def forget_factories(self) -> None:
        """No more workers will be started."""
        self._inits.clear()
        self._shared.clear()

    def close(self) -> None:
        """Give everything back; workers that still run end. Idempotent."""
        self.forget_factories()
        if self._lifeline is not None:
            self._lifeline.close()
        if self._server is not None:
            self._server.release()
            self._server = None

    @contextlib.contextmanager
    def reporting(self, worker: WorkerHandle, command: str) -> Iterator[None]:
        """While something is sent to a worker that starts: turn its death and its delay into what users are told."""
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
            raise self.timeout([worker]) from None

    def timeout(self, workers: Sequence[WorkerHandle]) -> WorkerTimeoutError:
        """The error for workers that are not ready in time."""
        return WorkerTimeoutError(
            f"the environments were not ready within start_timeout={self._config.start_timeout} s: "
            + waiting_for(workers),
            env_indices=tuple(i for worker in workers for i in worker.env_ids),
        )

    def _init(self, index: int, env_ids: range, payload: Any) -> WorkerInit:
        config = self._config
        return WorkerInit(
            worker=index,
            slot=index,
            later=False,
            succeeds=False,
            env_ids=env_ids,
            environ=self._environ(config.worker_env[index]),
            sys_path=tuple(import_path()),
            argv=tuple(sys.argv),
            cwd=os.getcwd(),
            cpus=config.cpus[index] if config.cpus else None,
            threads=config.threads_per_worker,
            unsafe_casts=config.unsafe_casts,
            check_nan=config.check_nan,
            autoreset_mode=config.autoreset_mode,
            with_step=config.with_step,
            spare_resets=config.spare_resets,
            prefix_output=config.prefix_output,
            spins=config.num_workers <= config.usable_cpus,
            shared=len(self._shared[index]),
            payload=payload,
        )

    def _launch(self, init: WorkerInit, deadline: float | None) -> tuple[WorkerProcess, Channel]:
        if self._server is not None:
            try:
                return self._fork(deadline)
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

    def _fork(self, deadline: float | None) -> tuple[WorkerProcess, Channel]:
        assert self._server is not None
        if not self._server.has_died():
            return self._server.fork(deadline)
        # Its workers live on without it; new ones need a new one.
        key, old = self._server.key, self._server
        self._server = ForkServer.acquire(key)
        old.release()
        return self._server.fork(deadline)

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
