"""Which engine there is for a configuration; what a face starts from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastvec._core.config import EngineConfig
from fastvec._core.engine import Engine
from fastvec._core.processes import ProcessEngine
from fastvec._core.protocol import Adapter
from fastvec._core.serial import SerialEngine

__all__ = ["make_engine"]


def make_engine(config: EngineConfig, env_fns: Sequence[Callable[[], Any]], adapter: Adapter) -> Engine:
    """An engine with workers, or in this process where there are to be none."""
    engine_class = ProcessEngine if config.num_workers else SerialEngine
    return engine_class(config, env_fns, adapter)
