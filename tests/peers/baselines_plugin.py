"""A pytest plugin that runs Baselines' own tests of its VecEnv classes with SharedMemVecEnv in their place.

See the README beside it. Baselines imports on no current Python stack, so its packages are replaced by empty ones
which lead to its files: the tests, and DummyVecEnv as what they compare with, are Baselines' own.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

import fastvec.baselines

IN_SERIES = os.environ.get("FASTVEC_PEERS_IN_SERIES")
WORKERS = os.environ.get("FASTVEC_PEERS_WORKERS")
CONTEXT = os.environ.get("FASTVEC_PEERS_START_METHOD")
REPLACE = os.environ.get("FASTVEC_PEERS_REPLACE", "SubprocVecEnv ShmemVecEnv").split()
PACKAGES = "baselines", "baselines.common", "baselines.common.tests", "baselines.common.vec_env", "baselines.ppo2"
HOMES = {"SubprocVecEnv": "subproc_vec_env", "ShmemVecEnv": "shmem_vec_env", "DummyVecEnv": "dummy_vec_env"}


class SharedMemVecEnv(fastvec.baselines.SharedMemVecEnv):
    """The class under test with this run's options as defaults."""

    def __init__(self, env_fns: Any, spaces: Any = None, context: str = "spawn", in_series: int = 1) -> None:
        options: dict[str, Any] = {}
        if in_series == 1 and WORKERS:
            options["num_workers"] = int(WORKERS)
        elif in_series == 1 and IN_SERIES:
            in_series = int(IN_SERIES)
        super().__init__(env_fns, spaces, CONTEXT or context, in_series, **options)


def with_mpi(*_: Any, **__: Any) -> Any:
    """In place of Baselines' decorator: runs the test here, in one process."""
    return lambda test: test


def install(checkout: str) -> None:
    """Make the modules that Baselines' tests and runners import.

    Args:
        checkout: The root of a checkout of openai/baselines.
    """
    sys.modules["gym"] = gymnasium
    if not hasattr(np, "bool"):  # as in NumPy 1.24 to 1.26
        np.bool = np.bool_  # type: ignore[misc]
    for name in PACKAGES:
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(Path(checkout, *name.split(".")))]
    mpi = sys.modules["baselines.common.tests.test_with_mpi"] = ModuleType("test_with_mpi")
    mpi.with_mpi = with_mpi  # type: ignore[attr-defined]
    for class_name, home in HOMES.items():
        name = f"baselines.common.vec_env.{home}"
        if class_name in REPLACE:
            sys.modules[name] = ModuleType(name)
            setattr(sys.modules[name], class_name, SharedMemVecEnv)
        else:
            importlib.import_module(name)
    base = importlib.import_module("baselines.common.vec_env.vec_env").VecEnv
    base.register(fastvec.baselines.SharedMemVecEnv)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Send the test modules' environments to workers by value, where `baselines` is none of the above."""
    for module in {item.module for item in items}:
        cloudpickle.register_pickle_by_value(module)


install(os.environ.get("FASTVEC_PEERS_BASELINES", "."))
