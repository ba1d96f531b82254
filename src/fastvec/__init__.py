"""fastvec: drop-in, optimized vectorized environments for reinforcement learning.

``from fastvec import SharedMemVecEnv`` is a Stable-Baselines3 ``VecEnv``, ``SharedMemVectorEnv`` a
Gymnasium ``VectorEnv`` (also by ``make_vec``), and ``fastvec.baselines`` has OpenAI Baselines'
``VecEnv``. Importing this package loads no framework: each public name is looked up when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastvec import errors
    from fastvec._core.sharing import shared
    from fastvec._make_vec import make_vec
    from fastvec._vector_infos import infos_to_dict, infos_to_list
    from fastvec.gymnasium import SharedMemVectorEnv
    from fastvec.sb3 import SharedMemVecEnv

__version__ = "0.1.0.dev0"

__all__ = [
    "SharedMemVecEnv",
    "SharedMemVectorEnv",
    "__version__",
    "errors",
    "infos_to_dict",
    "infos_to_list",
    "make_vec",
    "shared",
]

_HOMES = {
    "SharedMemVecEnv": "fastvec.sb3",
    "SharedMemVectorEnv": "fastvec.gymnasium",
    "infos_to_dict": "fastvec._vector_infos",
    "infos_to_list": "fastvec._vector_infos",
    "make_vec": "fastvec._make_vec",
    "shared": "fastvec._core.sharing",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("fastvec.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'fastvec' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
