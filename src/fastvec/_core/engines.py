"""Which engine there is for a configuration; what a face starts from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastvec._core.config import EngineConfig
from fastvec._core.engine import Engine
from fastvec._core.joined import JoinedEngine
from fastvec._core.pool import WorkerPool
from fastvec._core.processes import ProcessEngine
from fastvec._core.protocol import Adapter
from fastvec._core.serial import SerialEngine

__all__ = ["in_process_envs", "make_engine"]


def make_engine(config: EngineConfig, env_fns: Sequence[Callable[[], Any]], adapter: Adapter) -> Engine:
    """An engine with workers, or in this process where there are to be none."""
    if not config.num_workers:
        return SerialEngine(config, env_fns, adapter)
    return ProcessEngine(config, WorkerPool(config, env_fns, adapter))


def in_process_envs(engine: Engine) -> list[Any]:
    """The environments of an engine without workers.

    Raises:
        AttributeError: They live in other processes.
    """
    if isinstance(engine, SerialEngine):
        return engine.envs
    if isinstance(engine, JoinedEngine) and isinstance(engine.splits[0], SerialEngine):
        return [env for split in engine.splits for env in in_process_envs(split)]
    raise AttributeError(
        "the environments live in worker processes: ask for attributes and call methods of theirs through this object, "
        "or use num_workers=0"
    )
