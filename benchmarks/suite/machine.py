"""Where and with what a run was made: what a reader needs to repeat it, or to compare it with another."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["about"]

#: Distributions whose versions matter.
PACKAGES = (
    "fastvec",
    "numpy",
    "gymnasium",
    "stable-baselines3",
    "torch",
    "mujoco",
    "box2d",
    "pufferlib",
    "tianshou",
    "torchrl",
    "envpool",
)


def about(program: str, arguments: list[str]) -> dict[str, Any]:
    """The command, the time, the machine and the versions."""
    return {
        "command": shlex.join(["python", program, *arguments]),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": {
            "cpu": cpu_model(),
            "cpus": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "system": f"{platform.system()} {platform.release()}",
            "load_average": list(os.getloadavg()),
        },
        "versions": {"python": platform.python_version()} | versions(),
    }


def versions() -> dict[str, str]:
    """Of what is installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if "fastvec" not in found:  # run from a clone
        found["fastvec"] = sys.modules["fastvec"].__version__
    return found


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
