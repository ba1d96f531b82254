"""What ``reset()`` and ``step()`` of an environment must return."""

from __future__ import annotations

from typing import Any

from fastvec.errors import EnvError, InfoError

__all__ = ["parts_of_reset", "wrong_step"]


def wrong_step(result: Any) -> EnvError:
    """The error for a step that returned something else."""
    got = f"{len(result)} values" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
    return EnvError(
        f"step() must return (observation, reward, terminated, truncated, info), got {got}: is this environment "
        "written for the old gym API?"
    )


def parts_of_reset(result: Any) -> tuple[Any, dict[Any, Any]]:
    """The observation and the info that a reset returned."""
    try:
        observation, info = result
    except (TypeError, ValueError):
        raise EnvError(
            f"reset() must return (observation, info), got {type(result).__name__}: is this environment written "
            "for the old gym API?"
        ) from None
    if info is None:
        return observation, {}
    if not isinstance(info, dict):
        raise InfoError(
            f"reset() must return (observation, info) with a dict as info, got a {type(info).__name__}: is this "
            "environment written for the old gym API?"
        )
    return observation, info
