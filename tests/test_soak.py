"""The soak program works: a few of its scenarios find nothing wrong, and a wrong value is found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3")
pytest.importorskip("rich")

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "soak.py"


def soak(*arguments):
    """The program, run for a few scenarios of one seed."""
    command = [sys.executable, str(PROGRAM), "--seed", "3", "--minutes", "2", "--steps", "100", *arguments]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=170)


def test_a_few_scenarios_find_nothing_wrong(tmp_path):
    """Faults are survived, values compared, and the page is written with the numbers."""
    report, page = tmp_path / "soak.json", tmp_path / "endurance.md"
    done = soak("--scenarios", "6", "--long", "2000", "--json", str(report), "--markdown", str(page))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["scenarios"] == 6
    assert [found[name] for name in ("wrong", "hangs", "left", "broken", "bad_ones")] == [0, 0, 0, 0, []]
    assert found["steps"] > 2000
    assert found["restarts"] > 0
    assert "| **wrong values** | **0** |" in page.read_text()
    assert page.with_suffix(".png").stat().st_size > 1000


def test_a_wrong_value_is_found():
    """One bit of one reward is enough, and the report has the seed that shows it again."""
    done = soak("--scenarios", "1", "--long", "0", "--perturb", "5")
    assert done.returncode == 1, done.stdout + done.stderr
    (seed,) = re.findall(r"^scenario (\d+): ", done.stdout, re.MULTILINE)
    assert re.search(r"^  wrong: .*: result\[\d\]\[1\]: 1 of \d+ elements differ", done.stdout, re.MULTILINE)
    again = soak("--scenario", seed, "--perturb", "5")
    assert again.returncode == 1
    assert f"scenario {seed}: " in again.stdout
