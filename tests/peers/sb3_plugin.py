"""A pytest plugin that puts SharedMemVecEnv in the place of SB3's own classes, for SB3's own tests.

See the README beside it. Configured by environment variables, since SB3's test modules look the
classes up when they are imported.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import stable_baselines3.common.vec_env as vec_env
from stable_baselines3.common import env_util, evaluation, monitor  # noqa: F401

import fastvec.sb3

IN_SERIES = os.environ.get("FASTVEC_PEERS_IN_SERIES")
WORKERS = os.environ.get("FASTVEC_PEERS_WORKERS")
START_METHOD = os.environ.get("FASTVEC_PEERS_START_METHOD")
REPLACE = os.environ.get("FASTVEC_PEERS_REPLACE", "SubprocVecEnv")


class SharedMemVecEnv(fastvec.sb3.SharedMemVecEnv):
    """The class under test with this run's options as defaults."""

    def __init__(self, env_fns: Any, start_method: str | None = None, **options: Any) -> None:
        if IN_SERIES:
            options.setdefault("in_series", int(IN_SERIES))
        if WORKERS:
            options.setdefault("num_workers", int(WORKERS))
        super().__init__(env_fns, start_method or START_METHOD, **options)


original = getattr(vec_env, REPLACE)
for name, module in list(sys.modules.items()):
    if name.startswith("stable_baselines3") and getattr(module, REPLACE, None) is original:
        setattr(module, REPLACE, SharedMemVecEnv)
