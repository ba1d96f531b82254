"""The documentation: its Python runs and prints what it says, its links lead somewhere, its lists are complete."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("stable_baselines3")

from fastvec import SharedMemVecEnv, SharedMemVectorEnv, baselines, errors
from fastvec._core.options import EngineOptions

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = ROOT / "docs" / "guides" / "sb3.md"
FAULTS = ROOT / "docs" / "concepts" / "faults.md"

#: Stands before a block that trains. Readers want a policy, the test wants to know that training works: whatever a
#: block asks for, rollouts have 32 steps of each environment, and learning ends with the first one after 256 in all.
SHORTEN = """
def shorten():
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

    set_up_learn, set_up_model = BaseAlgorithm._setup_learn, OnPolicyAlgorithm._setup_model

    def short_learn(self, total_timesteps, *args, **kwargs):
        return set_up_learn(self, min(total_timesteps, 256), *args, **kwargs)

    def short_rollouts(self):
        self.n_steps = min(self.n_steps, 32)
        set_up_model(self)

    BaseAlgorithm._setup_learn, OnPolicyAlgorithm._setup_model = short_learn, short_rollouts


shorten()
del shorten
"""


class Block(NamedTuple):
    """Some Python of a page, and what it is said to print, if anything is said."""

    where: str
    code: str
    run: bool
    output: str | None


def fences(page):
    """Info string, text and line of each fenced block."""
    text = page.read_text()
    for match in re.finditer(r"^```([^\n`]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield match[1].strip(), match[2], text.count("\n", 0, match.start()) + 1


def blocks():
    found = []
    for page in PAGES:
        for info, text, line in fences(page):
            if info in ("python", "python no-run"):
                found.append(Block(f"{page.relative_to(ROOT)}:{line}", text, info == "python", None))
            elif info == "output":
                found[-1] = found[-1]._replace(output=text)
    return found


BLOCKS = blocks()


def run(script, *arguments, cwd):
    """A program, with one thread for PyTorch and no GPU, which is the least that it can expect."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300)


def run_selected(request, parameter, start):
    """What became of the programs of the tests that were selected, by name.

    They run two at a time before the first test, as most of the time goes into importing PyTorch, on one CPU.

    Args:
        request: Of a fixture of the module.
        parameter: The tests' parameter.
        start: Runs the program of one.
    """
    calls = [
        item.callspec for item in request.session.items if item.module is request.module and hasattr(item, "callspec")
    ]
    programs = {call.id: call.params[parameter] for call in calls if parameter in call.params}
    with ThreadPoolExecutor(2) as threads:
        return dict(zip(programs, threads.map(start, programs.values()), strict=True))


@pytest.fixture(scope="module")
def finished(request, tmp_path_factory):
    """Each block, run as a program of its own."""

    def start(block):
        script = tmp_path_factory.mktemp("block") / "block.py"
        script.write_text((SHORTEN if ".learn(" in block.code else "") + block.code)
        return run(script, cwd=script.parent) if block.run else None

    return run_selected(request, "block", start)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", BLOCKS, ids=[block.where for block in BLOCKS])
def test_the_python_of_the_pages_works(block, finished):
    """Each block compiles and, unless it says `no-run`, works as a program of its own, silently on stderr."""
    compile(block.code, block.where, "exec")
    if not block.run:
        return
    done = finished[block.where]
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    if block.output is not None:
        assert done.stdout == block.output


def anchors(page):
    """The names that a page's headings have as links."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_between_the_pages_resolve(page):
    """Every relative link names a file or folder that exists, and an anchor that its page has."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (anchor and anchor not in anchors(other)):
            broken.append(target)
    assert broken == []


def first_cells(page):
    """The code in the first column of each table of a page."""
    rows = re.findall(r"^\| ([^|]*) \|", page.read_text(), re.MULTILINE)
    return {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}


def options_of(face):
    """Every keyword that a face takes."""
    return set(inspect.signature(face).parameters) - {"engine_options"} | set(EngineOptions.__annotations__)


@pytest.mark.parametrize(
    ("face", "guide"),
    [(SharedMemVecEnv, "sb3"), (SharedMemVectorEnv, "gymnasium"), (baselines.SharedMemVecEnv, "baselines")],
)
def test_a_guide_lists_every_option(face, guide):
    """Each parameter of a class has a row in its guide's table."""
    assert options_of(face) - first_cells(ROOT / "docs" / "guides" / f"{guide}.md") == set()


@pytest.mark.parametrize("face", [SharedMemVecEnv, SharedMemVectorEnv, baselines.SharedMemVecEnv])
def test_a_docstring_lists_every_option(face):
    """Also those that its signature sums up."""
    arguments = face.__doc__.partition("Args:")[2].partition("Raises:")[0]
    names = {name.strip() for line in re.findall(r"^ {8}([\w, ]+):", arguments, re.M) for name in line.split(",")}
    assert options_of(face) - names == set()


def test_the_guide_says_what_to_do_about_every_error():
    """Each error has a row in the guide's table, but the root of them all."""
    assert set(errors.__all__) - {"FastvecError"} - first_cells(GUIDE) == set()


def test_the_tests_that_prove_what_becomes_of_a_fault_exist():
    """Each `file::test` of the page on faults names a function of that file."""
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", FAULTS.read_text())
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / "tests" / file).exists() or f"def {test}(" not in (ROOT / "tests" / file).read_text()
    ]
    assert named
    assert missing == []
