"""What does the one-line swap bring to a real training, and where does the time go?

Trains Stable-Baselines3's PPO with the same seed and settings on ``DummyVecEnv``, ``SubprocVecEnv`` and
``SharedMemVecEnv``, and times the two halves of every rollout: collection (environments and policy) and
update (gradient steps, which no vectorized environment can speed up). The trainings take turns, a
rollout each, so that whatever else the machine does hits them alike.

    make demo    or    python examples/demo.py [--steps 20480] [--n-envs 16] [--env BipedalWalker-v3] [--out DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

import fastvec
from fastvec import SharedMemVecEnv

# SubprocVecEnv's workers import this file: what only draws is imported where it draws, so as not to slow their start.
if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

CONTENDERS: tuple[type[VecEnv], ...] = (DummyVecEnv, SubprocVecEnv, SharedMemVecEnv)
#: Steps that PPO's defaults collect before an update.
ROLLOUT = 2048
#: One for all: more make the updates of so small a network no faster, and their idle spinning slows the environments.
TORCH_THREADS = 1


@dataclass
class Run:
    """What one training took, in seconds; the lists have one entry a rollout, and the first is warm-up."""

    name: str
    rollout_steps: int
    start_up: float
    collection: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)
    weights: str = ""

    def seconds(self, part: str) -> float:
        """Of ``"collection"`` or ``"update"``, the median over the rollouts; of ``"training"``, the two together."""
        if part == "training":
            return self.seconds("collection") + self.seconds("update")
        return median({"collection": self.collection, "update": self.update}[part][1:])

    def speed(self, part: str) -> float:
        """Environment steps a second."""
        return self.rollout_steps / self.seconds(part)

    def share(self, part: str) -> float:
        """A part's share of the training time, between 0 and 1."""
        return self.seconds(part) / self.seconds("training")


class RolloutClock(BaseCallback):
    """Notes when a collection begins, when the update does, and when that ends."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _mark(self) -> None:
        self.marks.append(time.perf_counter())

    _on_rollout_start = _on_rollout_end = _on_training_end = _mark


def train(env_id: str, n_envs: int, n_steps: int, rollouts: int, progress: Progress) -> list[Run]:
    """One training with each contender, from nothing to closed environments."""
    runs, models = [], []
    task = progress.add_task("", total=len(CONTENDERS) * rollouts)
    with contextlib.ExitStack() as stack:
        for vec_env_cls in CONTENDERS:
            progress.update(task, description=f"{vec_env_cls.__name__} starts")
            started = time.perf_counter()
            # The one line in which the contenders differ. (SB3's annotation admits its own two classes only.)
            venv = make_vec_env(env_id, n_envs=n_envs, seed=0, vec_env_cls=vec_env_cls)  # type: ignore[arg-type]
            runs.append(Run(vec_env_cls.__name__, n_steps * n_envs, time.perf_counter() - started))
            stack.callback(venv.close)
            models.append(PPO("MlpPolicy", venv, n_steps=n_steps, seed=0, device="cpu"))
        for turn in range(rollouts):
            for run, model in zip(runs, models, strict=True):
                progress.update(task, description=f"{run.name} trains")
                clock = RolloutClock()
                set_random_seed(turn)  # the generators are global: the same numbers for each
                model.learn(run.rollout_steps, callback=clock, reset_num_timesteps=False)
                begin, middle, end = clock.marks
                run.collection.append(middle - begin)
                run.update.append(end - middle)
                progress.advance(task)
        progress.update(task, description="done")
    for run, model in zip(runs, models, strict=True):
        weights = torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy()
        run.weights = hashlib.sha256(weights.tobytes()).hexdigest()
    return runs


def conclude(runs: list[Run]) -> str:
    """Where the time goes, in a sentence computed from the runs."""
    dummy, swapped = runs[0], runs[-1]
    shares = (f"{run.share('collection'):.0%} and {run.share('update'):.0%} with {run.name}" for run in runs)
    gains = {part: swapped.speed(part) / dummy.speed(part) for part in ("collection", "training")}
    bound = "collection" if swapped.share("collection") > 0.5 else "the update"
    return (
        f"Of the time, collection and update take {', '.join(shares)}; the swap from {dummy.name} to {swapped.name} "
        f"makes collection {gains['collection']:.2f} times and training {gains['training']:.2f} times as fast; what "
        f"bounds training now is {bound}, and collection that cost nothing would make it "
        f"{1 / dummy.share('update'):.2f} times as fast as with {dummy.name}."
    )


def caveats(runs: list[Run], load: float) -> str:
    """How the numbers came about, and how far to trust them."""
    updates = [run.seconds("update") for run in runs]
    equal = "equal, bit for bit" if len({run.weights for run in runs}) == 1 else "NOT equal"
    return (
        f"Medians over {len(runs[0].update) - 1} rollouts of {runs[0].rollout_steps:,} steps, after one to warm up; "
        f"the trainings took turns, with {TORCH_THREADS} PyTorch thread each, on {os.cpu_count()} CPUs with a load "
        f"average of {load:.1f} at the start. The policies that they learned are {equal}. The update is the same work "
        f"for all: that one's took {max(updates) / min(updates) - 1:.0%} longer than another's is this machine's noise."
    )


def tabulate(runs: list[Run], title: str) -> Table:
    """The comparison, one row a contender."""
    from rich.table import Table

    table = Table("vec_env_cls", title=title, title_justify="left")
    for heading in ("start-up", "collection\nsteps/s", "update\nsteps/s", "training\nsteps/s", "training\nvs Dummy"):
        table.add_column(heading, justify="right")
    for run in runs:
        speeds = [f"{run.speed(part):,.0f}" for part in ("collection", "update", "training")]
        ratio = run.speed("training") / runs[0].speed("training")
        table.add_row(run.name, f"{run.start_up:.1f} s", *speeds, f"{ratio:.2f}x")
    return table


def draw(runs: list[Run], title: str, path: Path) -> None:
    """A PNG: the seconds of a median rollout in its two halves, and the start-up."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = [run.name for run in runs]
    figure, (rollout, start) = plt.subplots(1, 2, figsize=(10, 3.4), width_ratios=(2, 1), sharey=True)
    figure.set_layout_engine("constrained")
    left = np.zeros(len(runs))
    for part, colour, ink in (("collection", "#2a78b5", "white"), ("update", "#c9ced6", "black")):
        seconds = np.array([run.seconds(part) for run in runs])
        bars = rollout.barh(names, seconds, left=left, color=colour, label=part)
        rollout.bar_label(bars, fmt="%.2f s", label_type="center", color=ink)
        left += seconds
    rollout.bar_label(bars, [f" {run.speed('training'):,.0f} steps/s" for run in runs], fontweight="bold")
    rollout.set(title=f"One rollout of {runs[0].rollout_steps:,} steps", xlabel="seconds", xlim=(0, left.max() * 1.25))
    start.bar_label(start.barh(names, [run.start_up for run in runs], color="#e0a458"), fmt=" %.1f s")
    start.set(title="Start-up", xlabel="seconds", xlim=(0, max(run.start_up for run in runs) * 1.25))
    start.invert_yaxis()
    for axes in (rollout, start):
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower left", ncols=2, frameon=False)
    figure.suptitle(title, fontweight="bold")
    figure.savefig(path, dpi=150)


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Keep what environments and libraries print, in any process, from the progress bars, and in a file."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)


def main() -> None:
    """Train with every contender, print the table and the sentence, save ``demo.png`` and ``demo.json``."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10 * ROLLOUT, help="environment steps of each training")
    parser.add_argument("--n-envs", type=int, default=16)
    parser.add_argument("--env", default="BipedalWalker-v3")
    parser.add_argument("--out", type=Path, default=Path("demo-results"), help="folder for the chart and the numbers")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(TORCH_THREADS)
    # At least two rollouts, since the first is not counted.
    n_steps = max(min(ROLLOUT, options.steps // 2) // options.n_envs, 2)
    rollouts = max(options.steps // (n_steps * options.n_envs), 2)
    load = os.getloadavg()[0]
    console = Console()
    columns = (TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with stderr_to(options.out / "stderr.txt"), Progress(*columns, console=console, refresh_per_second=2) as progress:
        runs = train(options.env, options.n_envs, n_steps, rollouts, progress)
    title = f'PPO("MlpPolicy") on {options.env}, {options.n_envs} environments'
    texts = {"caveats": caveats(runs, load), "conclusion": conclude(runs)}
    console.print("", tabulate(runs, title), *texts.values(), sep="\n\n", highlight=False)
    draw(runs, title, options.out / "demo.png")
    versions = {package.__name__: package.__version__ for package in (fastvec, stable_baselines3, torch, gymnasium, np)}
    machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()}
    report = {"title": title, **texts, "machine": machine, "versions": versions, "runs": [asdict(run) for run in runs]}
    (options.out / "demo.json").write_text(json.dumps(report, indent=2) + "\n")
    console.print(f"\nSaved demo.png and demo.json in {options.out}/", highlight=False)


if __name__ == "__main__":
    main()
