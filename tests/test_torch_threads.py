"""The word about PyTorch's threads: when it is said, and how often."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

PROGRAM = """
import logging, sys
import torch
from fastvec._torch_threads import tell_of_spinning
logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
torch.set_num_threads({threads})
tell_of_spinning({workers}, {cpus})
tell_of_spinning({workers}, {cpus})
"""


@pytest.mark.sb3
@pytest.mark.parametrize(
    ("threads", "workers", "cpus", "said"),
    [(2, 2, 2, True), (3, 2, 4, True), (2, 2, 4, False), (1, 2, 2, False), (2, 0, 2, False)],
)
def test_it_is_said_once_where_there_are_too_few_cpus(threads, workers, cpus, said):
    """Threads and workers that want more CPUs than there are: one line with the counts and the remedy; else none."""
    program = PROGRAM.format(threads=threads, workers=workers, cpus=cpus)
    lines = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    ).stdout.splitlines()
    assert len(lines) == said
    if said:
        assert lines[0].startswith(f"fastvec WARNING PyTorch uses {threads} threads in this process, beside {workers} ")
        assert f"on {cpus} CPUs" in lines[0]
        assert "torch.set_num_threads(1)" in lines[0]
