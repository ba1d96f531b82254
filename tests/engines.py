"""Engines for contract tests: every kind, over Gymnasium environments, without a learning framework."""

from __future__ import annotations

import time
from typing import Any

import psutil

from fastvec._core import engines
from fastvec._core.config import EngineConfig
from fastvec._core.engine import Engine
from fastvec._spaces import GymnasiumAdapter, registered_specs

START_METHODS = ("fork", "spawn", "forkserver")


def make_engine(env_fns: list[Any], *, adapter: GymnasiumAdapter | None = None, **options: Any) -> Engine:
    """An engine over some factories, by default with 2 forked workers."""
    options = {"num_workers": 2, "start_method": "fork", "start_timeout": 60.0, **options}
    config = EngineConfig.resolve(len(env_fns), **options)
    adapter = adapter or GymnasiumAdapter(registered=registered_specs() if config.num_workers else ())
    return engines.make_engine(config, env_fns, adapter)


def reset(engine: Engine, seed: int | None = None, options: Any = None) -> Any:
    """Reset all environments with consecutive seeds."""
    n = engine.num_envs
    given = {} if options is None else {"options": options}
    return engine.reset([{"seed": None if seed is None else seed + i, **given} for i in range(n)])


def eventually(check, seconds: float = 5.0):
    """Poll until ``check()`` is true; its last value."""
    deadline = time.monotonic() + seconds
    while not (value := check()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return value


def gone(pids):
    """Whether the processes have ended (a zombie that init has not yet collected has)."""
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            continue
    return True
