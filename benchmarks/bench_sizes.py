"""Does a step of one environment cost more where there are more of them?"""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("contender", ["DummyVecEnv", "SubprocVecEnv", "SharedMemVecEnv", "SharedMemVecEnv serial"])
@pytest.mark.parametrize("n", [1, 8, 32, 128, 1024])
def test_sizes(measure, n, contender):
    """CartPole on two workers, from one environment to a thousand."""
    measure(contender, "CartPole-v1", n)
