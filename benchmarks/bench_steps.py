"""How long do 20 steps of 32 environments take?

One contender after the other: for ratios to rely on, ``suite.py`` lets them take turns.
"""

from __future__ import annotations

import pytest
from suite.contenders import CONTENDERS


@pytest.mark.parametrize("contender", [name for name in CONTENDERS if name != "free limit"])
@pytest.mark.parametrize("work", ["no-op", "CartPole-v1", "HalfCheetah-v5", "BipedalWalker-v3"])
def test_steps(measure, work, contender):
    """All of Python's vectorized environments, beside the lockstep limit."""
    measure(contender, work)
