"""What stays with an index when another environment comes to serve it: the accounts of wrappers that keep some.

Imported by workers, so wrappers are known by their names: importing the class would import its framework.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["appending_writer", "building_spares", "hand_over"]

_SB3 = "stable_baselines3.common.monitor"

#: By module and class: attributes that an episode's ``reset()`` leaves alone, and that speak of an index.
_ACCOUNTS = {
    (_SB3, "Monitor"): (
        "t_start",
        "results_writer",
        "episode_returns",
        "episode_lengths",
        "episode_times",
        "total_steps",
    ),
    ("baselines.bench.monitor", "Monitor"): (
        "tstart",
        "results_writer",
        "episode_rewards",
        "episode_lengths",
        "episode_times",
        "total_steps",
    ),
    ("gymnasium.wrappers.common", "RecordEpisodeStatistics"): (
        "episode_count",
        "time_queue",
        "return_queue",
        "length_queue",
    ),
}


def hand_over(ended: Any, ready: Any) -> None:
    """Exchange the accounts of an environment whose episode has ended and of the one that takes its place."""
    for old, new in zip(_layers(ended), _layers(ready), strict=False):
        if type(old) is not type(new):
            continue
        for name in _accounts(old):
            mine, others = vars(old), vars(new)
            if name in mine and name in others:
                mine[name], others[name] = others[name], mine[name]


@contextlib.contextmanager
def building_spares() -> Iterator[list[Any]]:
    """While environments are built beside others that keep files: do not empty these, and write nothing to them.

    Yields:
        A list to put the environments in.
    """
    built: list[Any] = []
    monitor = sys.modules.get(_SB3)
    if monitor is None:
        yield built
        return
    writer = monitor.ResultsWriter
    monitor.ResultsWriter = appending_writer(monitor)  # type: ignore[attr-defined]
    try:
        yield built
    finally:
        monitor.ResultsWriter = writer  # type: ignore[attr-defined]
    for layer in (layer for env in built for layer in _layers(env)):
        if "results_writer" in _accounts(layer) and getattr(layer, "results_writer", None) is not None:
            layer.results_writer.close()
            layer.results_writer = None


def appending_writer(monitor: Any) -> type:
    """SB3's writer of the files of ``Monitor``, of a kind that goes on with files that exist."""

    class AppendingWriter(monitor.ResultsWriter):  # type: ignore[misc]
        """SB3's, but a file that exists is one that another environment has written, and is not emptied."""

        def __init__(
            self, filename: str = "", header: Any = None, extra_keys: Any = (), override_existing: bool = True
        ) -> None:
            name = monitor.Monitor.EXT
            path = os.path.join(filename, name) if os.path.isdir(filename) else f"{filename}.{name}"
            exists = os.path.exists(filename if filename.endswith(name) else path)
            super().__init__(filename, header, extra_keys, override_existing and not exists)

    return AppendingWriter


def _accounts(layer: Any) -> Sequence[str]:
    for base in type(layer).__mro__:
        found = _ACCOUNTS.get((base.__module__, base.__qualname__))
        if found is not None:
            return found
    return ()


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers of an environment, outermost first, and itself."""
    while env is not None:
        yield env
        env = getattr(env, "__dict__", {}).get("env")
