"""What do large observations cost? The environments do nothing but show pictures, or several arrays."""

from __future__ import annotations

import pytest

CONTENDERS = (
    "DummyVecEnv",
    "SubprocVecEnv",
    "AsyncVectorEnv",
    "SharedMemVecEnv",
    "SharedMemVecEnv tuned",
    "SharedMemVectorEnv",
)


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("work", ["images 84x84x4", "images 3x210x160", "dict"])
def test_observations(measure, work, contender):
    """32 environments, two workers."""
    measure(contender, work)
