"""A pytest plugin that puts SharedMemVectorEnv in the place of Gymnasium's own classes, for Gymnasium's own tests.

See the README beside it. Configured by environment variables, since Gymnasium's test modules look
the classes up when they are imported.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import gymnasium.vector
import gymnasium.vector.async_vector_env
import gymnasium.vector.sync_vector_env

import fastvec.gymnasium

IN_SERIES = os.environ.get("FASTVEC_PEERS_IN_SERIES")
WORKERS = os.environ.get("FASTVEC_PEERS_WORKERS")
START_METHOD = os.environ.get("FASTVEC_PEERS_START_METHOD")
REPLACE = os.environ.get("FASTVEC_PEERS_REPLACE", "AsyncVectorEnv")


class SharedMemVectorEnv(fastvec.gymnasium.SharedMemVectorEnv):
    """The class under test with this run's options as defaults."""

    @functools.wraps(fastvec.gymnasium.SharedMemVectorEnv.__init__)
    def __init__(self, env_fns: Any, *args: Any, context: str | None = None, **options: Any) -> None:
        if IN_SERIES:
            options.setdefault("in_series", int(IN_SERIES))
        if WORKERS:
            options.setdefault("num_workers", int(WORKERS))
        super().__init__(env_fns, *args, context=context or START_METHOD, **options)


if REPLACE == "AsyncVectorEnv":
    gymnasium.vector.AsyncVectorEnv = gymnasium.vector.async_vector_env.AsyncVectorEnv = SharedMemVectorEnv
else:
    gymnasium.vector.SyncVectorEnv = gymnasium.vector.sync_vector_env.SyncVectorEnv = SharedMemVectorEnv
