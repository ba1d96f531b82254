"""The options of an engine: every one is validated here, once, and nowhere else.

:meth:`EngineConfig.resolve` turns what a user wrote into a frozen value that names the number of
workers, the start method and each worker's CPUs. It looks at the machine but changes nothing.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from fastvec._core.checks import all_of, check_arguments, check_count, check_flag, check_names, check_seconds
from fastvec._core.options import CpuAffinity, ResetOptions, WorkerEnv
from fastvec._core.placement import resolve_cpus
from fastvec._core.start_method import resolve_start_method
from fastvec._core.topology import read_topology
from fastvec.errors import ConfigError

__all__ = ["AutoresetMode", "EngineConfig"]


class AutoresetMode(Enum):
    """When an environment whose episode has ended is reset."""

    #: By the next step, whose action is ignored.
    NEXT_STEP = "NextStep"
    #: By the step that ends it; the last observation comes beside.
    SAME_STEP = "SameStep"
    #: Only when asked to.
    DISABLED = "Disabled"


@dataclass(frozen=True)
class EngineConfig:
    """A validated set of options.

    Attributes:
        num_envs: How many environments there are.
        num_workers: How many worker processes; 0 runs the environments in this process.
        start_method: ``"fork"``, ``"spawn"`` or ``"forkserver"``.
        cpus: One set of CPU indices a worker, or None to leave placement to the system.
        learner_cpus: The CPUs to bind this process to, or None to leave it as it is.
        threads_per_worker: Cap on BLAS, OpenMP and torch threads in a worker; None for no cap.
        start_timeout: Seconds for all workers to build their environments.
        reset_timeout: Seconds for a reset of all environments; None waits as long as the workers live.
        step_timeout: The same for a step.
        close_timeout: Seconds that workers have to close their environments before they are ended.
        watchdog: Seconds of waiting after which a line is logged that says whom for; None for never.
        restart: Whether a worker that dies, hangs or raises is replaced.
        max_restarts: How many replacements there may be within ``restart_window`` seconds.
        max_episodes_per_worker: How many episodes a worker's environments begin before another worker takes them over.
        max_worker_rss: From how many bytes of resident memory on another worker does.
        worker_env: Environment variables of each worker.
        prefix_output: Whether what workers print has a prefix that says which worker it is.
        preload: Modules that a fork server imports once for all its workers, besides those found by itself.
        usable_cpus: How many CPUs this process and its workers may use at a time.
        unsafe_casts: Whether observations may lose their fraction or wrap around on their way into an integer space.
        check_nan: Whether rewards and observations are searched for NaN and infinity.
        reset_options: The options of automatic resets: none, those of the last explicit one, or what a function says.
        spare_resets: How many environments each worker, or this process, has beside, reset ahead.
        with_step: Methods and attributes of the environments whose values come with each step.
        autoreset_mode: When an environment is reset whose episode has ended.
        info_columns: Whether infos are wanted as arrays where they can be.
        copy: Whether all observations are copied; see :mod:`fastvec._core.leases`.
    """

    num_envs: int
    num_workers: int
    start_method: str
    cpus: tuple[frozenset[int], ...] | None = None
    learner_cpus: frozenset[int] | None = None
    threads_per_worker: int | None = 1
    start_timeout: float | None = 300.0
    reset_timeout: float | None = None
    step_timeout: float | None = None
    close_timeout: float = 5.0
    watchdog: float | None = 30.0
    restart: bool = False
    max_restarts: int = 10
    restart_window: float = 300.0
    max_episodes_per_worker: int | None = None
    max_worker_rss: int | None = None
    worker_env: tuple[Mapping[str, str], ...] = field(default=(), repr=False)
    worker_env_is_shared: bool = True
    prefix_output: bool = False
    preload: tuple[str, ...] = ()
    unsafe_casts: bool = False
    check_nan: bool = False
    reset_options: ResetOptions = None
    usable_cpus: int = 1
    spare_resets: int = 0
    with_step: tuple[str, ...] = ()
    autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP
    info_columns: bool = False
    copy: bool = True

    @classmethod
    def resolve(
        cls,
        num_envs: int,
        *,
        in_series: int | None = None,
        num_workers: int | None = None,
        start_method: str | None = None,
        context: str | None = None,
        max_workers: int | None = None,
        cpu_affinity: CpuAffinity = None,
        pin_learner: bool = False,
        threads_per_worker: int | None = 1,
        start_timeout: float | None = 300.0,
        reset_timeout: float | None = None,
        step_timeout: float | None = None,
        close_timeout: float = 5.0,
        watchdog: float | None = 30.0,
        on_failure: str = "raise",
        max_restarts: int = 10,
        restart_window: float = 300.0,
        max_episodes_per_worker: int | None = None,
        max_worker_rss: float | None = None,
        worker_env: WorkerEnv = None,
        worker_output: str = "inherit",
        preload: Sequence[str] = (),
        unsafe_casts: bool = False,
        check_nan: bool = False,
        reset_options: ResetOptions = None,
        spare_resets: int = 0,
        with_step: Sequence[str] = (),
        info_columns: bool = False,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        copy: bool = True,
    ) -> EngineConfig:
        """Check a user's options against each other and against the machine.

        Raises:
            ConfigError: An option is wrong; the message says what was expected and what was given.
        """
        if num_envs < 1:
            raise ConfigError("env_fns is empty: expected at least one environment factory")
        for name, flag in (("pin_learner", pin_learner), ("unsafe_casts", unsafe_casts), ("check_nan", check_nan)):
            check_flag(name, flag)
        check_flag("copy", copy)
        topology = read_topology()
        workers = _resolve_workers(num_envs, in_series, num_workers, topology.usable, max_workers)
        _check_reset_options(reset_options)
        check_count("max_restarts", max_restarts, least=0)
        if restart_window is None:
            raise ConfigError("restart_window must be a number of seconds, got None")
        for name, count in (
            ("threads_per_worker", threads_per_worker),
            ("max_episodes_per_worker", max_episodes_per_worker),
        ):
            if count is not None:
                check_count(name, count, least=1)
        _check_recycling(workers, max_episodes_per_worker, max_worker_rss)
        for name, seconds in (
            ("start_timeout", start_timeout),
            ("reset_timeout", reset_timeout),
            ("step_timeout", step_timeout),
            ("watchdog", watchdog),
            ("restart_window", restart_window),
        ):
            check_seconds(name, seconds)
        if close_timeout is None:
            raise ConfigError("close_timeout must be a number of seconds, got None: closing always ends")
        check_seconds("close_timeout", close_timeout)
        if worker_output not in ("inherit", "prefix"):
            raise ConfigError(f"worker_output must be 'inherit' or 'prefix', got {worker_output!r}")
        if isinstance(preload, str) or not all_of(preload, str):
            raise ConfigError(f"preload must be a sequence of module names, got {preload!r}")
        check_names("with_step", with_step)
        check_count("spare_resets", spare_resets, least=0)
        if spare_resets:
            _check_spares(reset_options, max_episodes_per_worker, max_worker_rss, autoreset_mode)
        cpus, learner_cpus = resolve_cpus(topology, workers, cpu_affinity, pin_learner, threads_per_worker or 1)
        return cls(
            num_envs=num_envs,
            num_workers=workers,
            start_method=resolve_start_method(start_method, context, workers),
            cpus=cpus,
            learner_cpus=learner_cpus,
            threads_per_worker=threads_per_worker,
            start_timeout=start_timeout,
            reset_timeout=reset_timeout,
            step_timeout=step_timeout,
            close_timeout=close_timeout,
            watchdog=watchdog,
            restart=_resolve_restart(on_failure, workers),
            max_restarts=max_restarts,
            restart_window=restart_window,
            max_episodes_per_worker=max_episodes_per_worker,
            max_worker_rss=None if max_worker_rss is None else int(max_worker_rss),
            worker_env=_resolve_worker_env(worker_env, workers),
            worker_env_is_shared=not callable(worker_env),
            prefix_output=worker_output == "prefix",
            preload=tuple(preload),
            usable_cpus=topology.usable,
            unsafe_casts=unsafe_casts,
            check_nan=check_nan,
            reset_options=reset_options,
            spare_resets=int(spare_resets),
            with_step=tuple(dict.fromkeys(with_step)),
            autoreset_mode=autoreset_mode,
            info_columns=info_columns,
            copy=copy,
        )

    @property
    def recycles(self) -> bool:
        """Whether workers are followed by others between episodes."""
        return self.max_episodes_per_worker is not None or self.max_worker_rss is not None

    def slices(self) -> list[range]:
        """The environments of each worker: contiguous ranges whose sizes differ by at most 1."""
        base, extra = divmod(self.num_envs, self.num_workers)
        bounds = [worker * base + min(worker, extra) for worker in range(self.num_workers + 1)]
        return [range(low, high) for low, high in itertools.pairwise(bounds)]


def _resolve_workers(
    num_envs: int, in_series: int | None, num_workers: int | None, usable: int, max_workers: int | None
) -> int:
    workers = _wanted_workers(num_envs, in_series, num_workers, usable)
    if max_workers is None:
        return workers
    check_count("max_concurrency", max_workers, least=1)
    if workers > max_workers and (in_series is not None or num_workers is not None):
        raise ConfigError(
            f"max_concurrency={max_workers} allows as many workers, but "
            + (f"in_series={in_series}" if num_workers is None else f"num_workers={num_workers}")
            + f" asks for {workers}: leave one of the two out"
        )
    return min(workers, int(max_workers))


def _wanted_workers(num_envs: int, in_series: int | None, num_workers: int | None, usable: int) -> int:
    if num_workers is not None:
        check_count("num_workers", num_workers, least=0)
    if in_series is None:
        if num_workers is None:
            num_workers = usable
        return min(int(num_workers), num_envs)
    check_count("in_series", in_series, least=1)
    needed = math.ceil(num_envs / in_series)
    if num_workers is not None and num_workers != needed:
        raise ConfigError(
            f"in_series={in_series} puts {num_envs} environments on {needed} workers, but num_workers={num_workers} "
            "was given too: leave one of the two out"
        )
    return needed


def _resolve_restart(on_failure: str, num_workers: int) -> bool:
    if on_failure not in ("raise", "restart"):
        raise ConfigError(f"on_failure must be 'raise' or 'restart', got {on_failure!r}")
    if on_failure == "restart" and not num_workers:
        raise ConfigError(
            "on_failure='restart' needs workers that can be replaced, and num_workers=0 has none: leave one of them out"
        )
    return on_failure == "restart"


def _check_reset_options(reset_options: Any) -> None:
    if reset_options is None or (isinstance(reset_options, str) and reset_options == "keep"):
        return
    if not callable(reset_options):
        raise ConfigError(
            "reset_options must be None, 'keep' or a function of an environment's index and the number of automatic "
            f"resets since its last reset(), got {reset_options!r}"
        )
    check_arguments("reset_options", reset_options, "env_id, number")


def _check_recycling(num_workers: int, max_episodes: int | None, max_rss: float | None) -> None:
    if max_rss is not None and (
        isinstance(max_rss, (bool, str)) or not isinstance(max_rss, (int, float, np.number)) or not max_rss >= 1
    ):
        raise ConfigError(f"max_worker_rss must be a number of bytes, such as 2e9 for two gigabytes, got {max_rss!r}")
    for name, value in (("max_episodes_per_worker", max_episodes), ("max_worker_rss", max_rss)):
        if value is not None and not num_workers:
            raise ConfigError(
                f"{name}={value} needs workers that can be replaced, and num_workers=0 has none: leave one of them out"
            )
    if max_rss is not None and not os.path.exists("/proc/self/statm"):
        raise ConfigError("max_worker_rss needs /proc, which this system does not have: use max_episodes_per_worker")


def _check_spares(reset_options: ResetOptions, episodes: int | None, rss: float | None, mode: AutoresetMode) -> None:
    if mode is AutoresetMode.DISABLED:
        raise ConfigError(
            f"spare_resets prepares automatic resets, and with autoreset_mode={mode.value!r} there are none: leave one "
            "of them out"
        )
    for name, value in (
        ("reset_options", reset_options),
        ("max_episodes_per_worker", episodes),
        ("max_worker_rss", rss),
    ):
        if value is not None:
            raise ConfigError(
                f"spare_resets cannot be combined with {name}: an environment that is reset ahead does not know which "
                "index it will serve. Leave one of them out"
            )


def _resolve_worker_env(worker_env: WorkerEnv, num_workers: int) -> tuple[Mapping[str, str], ...]:
    if callable(worker_env):
        check_arguments("worker_env", worker_env, "worker")
    maps = [worker_env(w) if callable(worker_env) else (worker_env or {}) for w in range(num_workers)]
    for worker, variables in enumerate(maps):
        if not isinstance(variables, Mapping) or not all(
            isinstance(k, str) and isinstance(v, str) for k, v in variables.items()
        ):
            raise ConfigError(
                f"worker_env must give a mapping of strings to strings, got {variables!r} for worker {worker}"
            )
    return tuple(dict(variables) for variables in maps)
