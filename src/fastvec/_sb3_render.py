"""One picture of all environments of a Stable-Baselines3 ``VecEnv``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env.base_vec_env import tile_images

__all__ = ["tiled"]


def tiled(rendered: Sequence[Any]) -> tuple[NDArray[Any] | None, dict[int, str]]:
    """The images among what the environments have rendered, side by side, and what the others are.

    Returns:
        ``(rows * height, columns * width, channels)``, or None where there is no image; by environment, the name of
        the type of what is no image.
    """
    images: list[Any] = [image for image in rendered if _is_image(image)]
    others = {i: type(image).__name__ for i, image in enumerate(rendered) if not _is_image(image)}
    return tile_images(images) if images else None, others


def _is_image(rendered: Any) -> bool:
    try:
        array = np.asarray(rendered)
    except Exception:  # of objects that only seem to be arrays, or of lists of different lengths
        return False
    return array.ndim == 3 and array.dtype.kind in "biuf"
