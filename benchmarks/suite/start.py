"""How long until the environments are ready, and how much memory do idle workers hold of their own?

Each contender builds its environments through ``make_vec_env`` under the fork server and resets them once, in a fresh
program that has imported Stable-Baselines3, as a training script has.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

__all__ = ["CONTENDERS", "starts"]

PROGRAM = """
import json, sys, time
import psutil
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv
from fastvec import SharedMemVecEnv

if __name__ == "__main__":
    cls, options = eval(sys.argv[3])
    started = time.perf_counter()
    venv = make_vec_env(sys.argv[1], n_envs=int(sys.argv[2]), vec_env_cls=cls, vec_env_kwargs=options)
    venv.reset()
    seconds = time.perf_counter() - started
    handles = venv.processes if cls is SubprocVecEnv else [worker.process for worker in venv._engine._pool.workers]
    private = [psutil.Process(handle.pid).memory_full_info().uss / 2**20 for handle in handles]
    everything = sum(c.memory_full_info().uss for c in psutil.Process().children(recursive=True)) / 2**20
    print(json.dumps({"seconds": seconds, "private": private, "everything": everything}))
    venv.close()
"""
CONTENDERS = {
    "SubprocVecEnv": "(SubprocVecEnv, {'start_method': 'forkserver'})",
    "SharedMemVecEnv, 2 workers": "(SharedMemVecEnv, {'num_workers': 2, 'start_method': 'forkserver'})",
    "SharedMemVecEnv, a worker each": "(SharedMemVecEnv, {'in_series': 1, 'start_method': 'forkserver'})",
}


def starts(
    env_id: str = "BipedalWalker-v3", n: int = 32, rounds: int = 1, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Seconds until ready, MB that each worker has alone, and all children together: medians, by contender."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    for turn in range(rounds):
        for name, contender in CONTENDERS.items():
            tell(f"starts {name}, {turn + 1} of {rounds}")
            command = [sys.executable, "-c", PROGRAM, env_id, str(n), contender]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    runs = {
        name: {
            "seconds": median(one["seconds"] for one in ran),
            "private_mb": median(max(one["private"]) for one in ran),
            "all_mb": median(one["everything"] for one in ran),
        }
        for name, ran in found.items()
    }
    return {"work": env_id, "n": n, "rounds": rounds, "runs": runs}
