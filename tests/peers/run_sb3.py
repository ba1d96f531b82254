"""Run Stable-Baselines3's own tests with SharedMemVecEnv in the place of its classes.

    python tests/peers/run_sb3.py CHECKOUT [--quick]

CHECKOUT is a clone of the Stable-Baselines3 repository at the installed version; only its tests are
used, the package is the installed one. Prints one line a run, then exits with the number of failures.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent

#: Files that exercise SubprocVecEnv as they stand.
SUBPROC = ["test_vec_envs.py", "test_utils.py", "test_dict_env.py", "test_her.py"]
#: Files that exercise DummyVecEnv.
DUMMY = [
    *SUBPROC,
    "test_vec_monitor.py",
    "test_vec_normalize.py",
    "test_vec_check_nan.py",
    "test_vec_extract_dict_obs.py",
    "test_vec_stacked_obs.py",
]


def run(checkout: Path, files: list[str], variables: dict[str, str], extra: list[str]) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(checkout / "tests", Path(folder) / "tests")
        process = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "sb3_plugin", "-x" if False else "-ra", "--timeout=300",
             "-p", "no:cacheprovider", *extra, *(f"tests/{name}" for name in files)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(HERE), **variables},
            capture_output=True,
            text=True,
        )
    return process.returncode, process.stdout
