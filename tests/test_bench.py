"""The benchmark suite: its arithmetic, its fairness, its page, and the check that says what got worse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
pytest.importorskip("rich")
pytest.importorskip("matplotlib")

from suite import check, end_to_end, grid, limits, tails, targets
from suite.contenders import CONTENDERS, Contender
from suite.envs import SlowResetEnv
from suite.interleave import compare
from suite.report import write_page
from suite.results import Cell, Results
from suite.stepper import Turn, batch, same
from suite.workloads import WORKS, Plan, Work, share_out

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

# Forks of a process that has threads, as this one has from its libraries, and short rollouts.
pytestmark = pytest.mark.filterwarnings("ignore")

ABOUT = {
    "command": "python benchmarks/suite.py",
    "date": "2026-01-01 00:00 UTC",
    "machine": {"cpu": "A CPU", "cpus": 2, "memory_gib": 8, "system": "Linux", "load_average": [0.0, 0.0, 0.0]},
    "versions": {"python": "3.11"},
}


def cell(work="no-op", n=32, workers=2, **relative):
    """Seven rounds, in which the limit is 1000 and others are multiples of it, with some noise that all share."""
    noise = np.array([1, 0.7, 1.1, 0.9, 1, 1.2, 0.8]) * 1000
    rates = {"free limit": 1.2, "lockstep limit": 1.0} | {
        name.replace("_", " "): factor for name, factor in relative.items()
    }
    return Cell(work, n, workers, {name: (factor * noise).tolist() for name, factor in rates.items()})


def test_the_free_limit_is_the_sum_of_the_rates():
    """Two environments at 5 and two at 10 steps a second are 30 steps a second; in lockstep the slower one counts."""
    shares = [limits.Share(0.0, 2.0, 2), limits.Share(0.5, 1.5, 2)]
    assert limits.free_seconds(shares, steps=10) == pytest.approx(10 * 4 / (10 * 2 / 2 + 10 * 2 / 1))
    assert limits.lockstep_seconds(shares) == 1.5


@pytest.mark.parametrize("kind", [limits.free, limits.lockstep])
def test_a_limit_steps_the_same_environments_and_resets_them(kind):
    """What its processes show after some steps, in uneven shares, is what one loop over all of them shows."""
    plan = Plan(Work("resets", SlowResetEnv), 3, 2)
    envs = [SlowResetEnv() for _ in range(3)]
    expected = [env.reset(seed=index)[0].copy() for index, env in enumerate(envs)]
    limit = kind(plan)
    try:
        assert same(limit.restart(), batch(expected))
        limit.advance(0, 30)
        turn = limit.advance(30, 40)
    finally:
        limit.close()
    for actions in plan.window(0, 70):
        for index, env in enumerate(envs):
            expected[index], _, terminated, _, _ = env.step(actions[index])
            if terminated:
                expected[index], _ = env.reset()
    assert turn.seconds > 0
    assert same(turn.observations, batch(expected))


def test_shares_are_contiguous_and_the_first_are_larger():
    """As the engine deals out its environments."""
    assert [list(part) for part in share_out(5, 2)] == [[0, 1, 2], [3, 4]]
    assert Plan(WORKS["no-op"], 4, 0).slices == [range(4)]


class Fake:
    """Takes a time that it is told to; shows how many steps it has taken, or something else."""

    def __init__(self, step_seconds, shows=lambda steps: steps):
        self.step_seconds, self.shows, self.steps, self.closed = step_seconds, shows, 0, False

    def restart(self):
        pass

    def advance(self, first, steps):
        assert first == self.steps
        self.steps += steps
        return Turn(steps * self.step_seconds, np.array([self.shows(self.steps)]))

    def close(self):
        self.closed = True


def fails_later(steps):
    if steps > 3:
        raise OSError("broken pipe")
    return steps


def contender(name, fake, **options):
    return Contender(name, lambda plan: fake, **options)


def test_a_peer_that_fails_is_left_out_and_the_rest_goes_on():
    """The reason is kept; rates are those of the batch; everybody is closed; who is slower takes fewer steps."""
    fakes = {"DummyVecEnv": Fake(0.001), "slow": Fake(0.01), "peer": Fake(0.001, fails_later)}
    who = [contender(name, fake, peer=name == "peer") for name, fake in fakes.items()]
    who.append(Contender("absent", lambda plan: None, module="no_such_module"))
    found = compare(Plan(WORKS["no-op"], 4, 2), who, rounds=3, seconds=0.1)
    assert found.rates == {"DummyVecEnv": [pytest.approx(4000)] * 3, "slow": [pytest.approx(400)] * 3}
    assert found.steps == {"DummyVecEnv": 100, "slow": 10}
    assert found.checked == {"DummyVecEnv": "equal", "slow": "equal"}
    assert found.left_out["peer"] == "fails: OSError: broken pipe"
    assert "no_such_module" in found.left_out["absent"]
    assert all(fake.closed for fake in fakes.values())


def test_who_computes_something_else_ends_the_comparison():
    """Unless it is a peer, of whom it is told."""
    plan = Plan(WORKS["no-op"], 4, 2)
    pair = {"DummyVecEnv": Fake(0.01), "liar": Fake(0.01, lambda steps: 0)}
    with pytest.raises(AssertionError, match="liar computed something else than DummyVecEnv"):
        compare(plan, [contender(name, fake) for name, fake in pair.items()], 1, 0.1)
    pair = {"DummyVecEnv": Fake(0.01), "liar": Fake(0.01, lambda steps: 0)}
    found = compare(plan, [contender(name, fake, peer=True) for name, fake in pair.items()], 1, 0.1)
    assert found.checked["liar"] == "DIFFERENT"


def test_a_ratio_is_taken_round_by_round():
    """Noise that both share does not move it, nor its spread."""
    ratio = cell(SharedMemVecEnv=0.8).ratio("SharedMemVecEnv", "lockstep limit")
    assert ratio == pytest.approx((0.8, 0.8, 0.8))
    assert ratio.relative == pytest.approx(0)


def test_the_check_says_what_got_worse_and_only_that(tmp_path):
    """Of two files: a ratio to the limit that fell by more than a twentieth; halves in turn by the free limit."""
    old = Results(ABOUT, [cell(SharedMemVecEnv=0.8, SubprocVecEnv=0.1), cell("dict", SharedMemVecEnv_two_splits=0.9)])
    new = Results(ABOUT, [cell(SharedMemVecEnv=0.7, SubprocVecEnv=0.01), cell("dict", SharedMemVecEnv_two_splits=0.88)])
    for name, results in (("old", old), ("new", new)):
        results.save(tmp_path / f"{name}.json")

    def run(one, other):
        command = [sys.executable, BENCHMARKS / "check_speed.py", tmp_path / f"{one}.json", tmp_path / f"{other}.json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()

    worse = "worse: no-op, n=32, 2 workers, SharedMemVecEnv: 0.700 of the lockstep limit, was 0.800 (may fall by 5%)"
    assert run("old", "new") == (1, [worse, "2 ratios compared, 1 worse"])
    assert run("new", "old") == (0, ["2 ratios compared, 0 worse"])


def test_the_check_tolerates_what_the_rounds_spread():
    """A fall within the quartiles of both runs is none; runs without a common comparison are an error of use."""
    noisy = cell(SharedMemVecEnv=0.8)
    noisy.rates["SharedMemVecEnv"] = [factor * 800 for factor in (1, 0.5, 1.5, 0.8, 1.2, 0.6, 1.4)]
    assert check.report(Results(ABOUT, [noisy]), Results(ABOUT, [cell(SharedMemVecEnv=0.7)]))[1] == 0
    assert check.report(Results(ABOUT, [noisy]), Results(ABOUT, [cell(n=8, SharedMemVecEnv=0.7)]))[1] == 2


def test_the_page_has_every_part_and_marks_where_we_lose(tmp_path):
    """From numbers made by hand: targets with marks, losses, tables, plots, and the numbers themselves."""
    parts = {part: [1.0, 1.0, 1.0] for part in (*end_to_end.PARTS, "collection")}
    half = {part: [0.5, 0.5, 0.5] for part in parts}
    pipelined = {"collection": [0.4] * 3, "update": [1.0] * 3}
    learning = [
        {
            **asdict(end_to_end.TRAININGS[0]),
            "runs": {"DummyVecEnv": parts, "SubprocVecEnv": parts, "SharedMemVecEnv": half, "PipelinedPPO": pipelined},
        }
    ]
    times = {"p50": 1.0, "p90": 2.0, "p99": 3.0, "max": 4.0}
    started = {"seconds": 10.0, "private_mb": 100.0, "all_mb": 3200.0}
    ours = {"seconds": 0.9, "private_mb": 9.0, "all_mb": 50.0}
    results = Results(
        ABOUT,
        [
            cell("CartPole-v1", SharedMemVecEnv=0.75, DummyVecEnv=0.5, SubprocVecEnv=0.02),
            cell("CartPole-v1", 1, SharedMemVecEnv=0.2, DummyVecEnv=0.4),
            cell("CartPole-v1", 32, 4, SharedMemVecEnv=0.7),
        ],
        missing={"PufferLib": "ModuleNotFoundError: No module named 'pufferlib'"},
        learning=learning,
        start={
            "work": "BipedalWalker-v3",
            "n": 32,
            "rounds": 1,
            "runs": {"SubprocVecEnv": started, "SharedMemVecEnv, 2 workers": ours},
        },
        tails={"work": "BipedalWalker-v3", "n": 32, "workers": 2, "steps": 100, "ms": {"SharedMemVecEnv": times}},
    )
    write_page(tmp_path, results)
    page = (tmp_path / "index.md").read_text()
    assert "| CartPole-v1 | 0.75 ✓ (≥ 0.7) | 37.5 ✓ (≥ 20) | 1.50 ✗ (≥ 1.6) | not run (≥ 0.75) |" in page
    assert "| PPO, BipedalWalker, 32 environments, collection | × DummyVecEnv | 2.00 ✓ | ≥ 1.6 |" in page
    assert "| private memory of a worker, 32 environments | MB | 9.00 ✓ | ≤ 10 |" in page
    assert "- CartPole-v1, 1 environments, 2 workers: 0.50 times DummyVecEnv." in page
    assert "PufferLib everywhere (ModuleNotFoundError: No module named 'pufferlib')" in page
    assert "Not measured" not in page
    for name in ("works", "sizes", "learning"):
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
    again = Results.load(tmp_path / "results.json")
    assert (again.learning, again.start, again.missing) == (results.learning, results.start, results.missing)
    assert again.cells[0].rates["SharedMemVecEnv"] == pytest.approx(results.cells[0].rates["SharedMemVecEnv"])


def test_a_training_is_split_into_parts_that_add_up():
    """Four environments, two rollouts of eight steps: what is collected is stepping and inference, nothing is lost."""
    found = end_to_end.train(end_to_end.Training("PPO", "CartPole-v1", 4, 8, 1), rounds=1)
    assert list(found["runs"])[:3] == ["DummyVecEnv", "SubprocVecEnv", "SharedMemVecEnv"]
    for parts in found["runs"].values():
        if "environments" not in parts:
            continue
        (collection,), (inference,) = parts["collection"], parts["inference"]
        stepping = parts["environments"][0] + parts["slowest"][0] + parts["transfer"][0]
        assert 0 < inference < collection
        assert stepping >= collection - inference - 1e-9
        assert parts["update"][0] > 0


def test_single_steps_are_timed_one_by_one():
    """Percentiles, in order, of as many steps as were asked for."""
    found = tails.step_times("CartPole-v1", n=2, workers=1, blocks=1)
    assert found["steps"] == tails.BLOCK
    for ms in found["ms"].values():
        assert 0 < ms["p50"] <= ms["p90"] <= ms["p99"] <= ms["max"]


def test_the_grids_name_what_exists_once():
    """Works and contenders of every task are known, no comparison is made twice, and the targets' are made."""
    for tasks in (grid.full(), grid.quick(), grid.targets()):
        assert len({task[:3] for task in tasks}) == len(tasks)
        assert {task.work for task in tasks} <= set(WORKS)
        assert {name for task in tasks for name in task.contenders} <= set(CONTENDERS)
    made = {task[:3] for task in grid.targets()}
    assert {(target.row.partition(",")[0], 32, 2) for target in targets.STEPS} <= made
    assert made <= {task[:3] for task in grid.full()}


def test_the_questions_for_pytest_benchmark_are_answered():
    """Each of these files collects, and a contender's result in one of them is right; nothing is timed here."""
    command = [sys.executable, "-m", "pytest", BENCHMARKS, "--benchmark-disable", "-q", "-k"]
    command += ["test_sizes and 8-SharedMemVecEnv and not 128"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_program_writes_its_page(tmp_path):
    """The smallest run there is: two turns of four contenders, with their values compared."""
    command = [sys.executable, BENCHMARKS / "suite.py", "--works", "CartPole-v1", "--n", "4", "--rounds", "2"]
    command += ["--seconds", "0.005", "--out", tmp_path, "--contenders"]
    command += ["free limit", "lockstep limit", "DummyVecEnv", "SharedMemVecEnv", "SharedMemVectorEnv"]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    (only,) = found["cells"]
    assert set(only["checked"].values()) == {"equal"}
    assert all(len(rates) == 2 and min(rates) > 0 for rates in only["rates"].values())
    assert found["about"]["command"].startswith("python benchmarks/suite.py --works CartPole-v1 --n 4")
    assert {"python", "numpy", "fastvec"} <= set(found["about"]["versions"])
    page = (tmp_path / "index.md").read_text()
    assert "**Do not rely on this run: it has only 2 rounds" in page
    assert "Not measured in this run." in page
