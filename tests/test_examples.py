"""The examples run, shortened by their own flags, and print what they are about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3")
pytest.importorskip("Box2D")
pytest.importorskip("mujoco")

from test_docs import run, run_selected

EXAMPLES = Path(__file__).parents[1] / "examples"

CASES = {
    "ppo_bipedalwalker.py": (
        ["--timesteps", "512", "--n-envs", "4"],
        [
            r"4 environments on [1-4] workers",
            r"512 steps, \d+ a second with the updates",
            r"mean return of the last \d+ episodes: (-?\d+\.\d|nan)",
        ],
    ),
    "sac_humanoid.py": (
        ["--timesteps", "24", "--n-envs", "4"],
        [r"24 transitions from 4 environments, 12 gradient steps", r"\d+ transitions a second"],
    ),
    "ppo_gymnasium.py": (
        ["--timesteps", "8192"],
        [
            r"8 environments on [1-8] workers",
            *[rf"{steps} steps: mean return of the last \d+ episodes: \d+\.\d" for steps in (2048, 4096, 5120, 7168)],
            # A policy that has learned nothing gets 22.
            r"8192 steps: mean return of the last 100 episodes: ([4-9]\d|\d{3})\.\d",
            r"\d+ steps a second",
        ],
    ),
    "pipelined_ppo.py": (
        ["--timesteps", "512", "--n-envs", "8", "--rollouts", "2"],
        [
            r"8 environments on [1-4] workers",
            r"PPO           \d+ steps a second",
            r"PipelinedPPO  \d+ steps a second",
            r"PipelinedPPO, with the updates: 512 steps, mean return (-?\d+\.\d|nan)",
        ],
    ),
    "async_batches.py": (
        ["--steps", "800"],
        [r"all in step: \d+ steps a second", r"the first half: \d+ steps a second"],
    ),
    "custom_environment.py": (
        ["--timesteps", "512"],
        [
            r"512 steps; the last \d+ episodes took \d+\.\d steps on average",
            r"env [0-7] on worker \d failed in step\(\): fell out of the corridor at -1",
            r'File ".*", line \d+, in step',
        ],
    ),
}


@pytest.fixture(scope="module")
def finished(request, tmp_path_factory):
    """Each example, run with its arguments."""
    return run_selected(
        request, "name", lambda name: run(EXAMPLES / name, *CASES[name][0], cwd=tmp_path_factory.mktemp("example"))
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_an_example_does_what_it_shows(name, finished):
    """It ends well, silent on stderr, and its lines are the expected ones."""
    done = finished[name]
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    lines, expected = done.stdout.splitlines(), CASES[name][1]
    assert len(lines) == len(expected), done.stdout
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), line
