"""How long until the environments are ready, and how much memory do idle workers hold of their own?

Each contender builds 8 environments through ``make_vec_env`` under the fork server and resets them
once, in a fresh program that has imported Stable-Baselines3, as a training script has.

    python benchmarks/start_vs_sb3.py [--env BipedalWalker-v3] [--n 8] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="BipedalWalker-v3")
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(options.rounds):
        for name, contender in CONTENDERS.items():
            command = [sys.executable, "-c", PROGRAM, options.env, str(options.n), contender]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    first = statistics.median(one["seconds"] for one in found["SubprocVecEnv"])
    print(f"{'contender':32} {'ready after':>11} {'ratio':>6} {'private a worker':>17} {'all children':>13}")
    for name, runs in found.items():
        seconds = statistics.median(one["seconds"] for one in runs)
        worker = statistics.median(max(one["private"]) for one in runs)
        everything = statistics.median(one["everything"] for one in runs)
        print(f"{name:32} {seconds:9.1f} s {seconds / first:6.2f} {worker:14.1f} MB {everything:10.0f} MB")


if __name__ == "__main__":
    main()
