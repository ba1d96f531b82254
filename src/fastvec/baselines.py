"""The OpenAI Baselines face: a ``VecEnv`` by behaviour, which imports neither ``baselines`` nor ``gym``.

It knows what Baselines' runners and wrappers rely on (same-step resets, infos as the environments
returned them, rewards and dones that may be kept) and nothing of processes.
"""

from __future__ import annotations

import importlib
import math
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fastvec._baselines_adapter import BaselinesAdapter, declaration, image
from fastvec._core.checks import check_flag
from fastvec._core.config import EngineConfig
from fastvec._core.engines import in_process_envs, make_engine
from fastvec._core.factories import check_factories
from fastvec._core.layout import StepFlag
from fastvec._core.options import check_options
from fastvec._spaces import registered_specs
from fastvec._splits import SplitsBaselines
from fastvec.errors import ClosedError, ConfigError, SpaceMismatchError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fastvec._core.options import EngineOptions

__all__ = ["SharedMemVecEnv"]

_DONE = StepFlag.TERMINATED.value | StepFlag.TRUNCATED.value


class _UsedAfterCloseError(ClosedError, AssertionError):
    """The error of both worlds: Baselines asserts that it has not been closed."""


class SharedMemVecEnv(SplitsBaselines):
    """Many environments on few worker processes, with everything that a step moves in shared memory.

    Takes the place of Baselines' ``SubprocVecEnv`` and ``ShmemVecEnv``, whose arguments come first and in their
    order, and, with ``num_workers=0``, of its ``DummyVecEnv``. Results do not depend on the number of workers.

    Environments may be written for Gymnasium's API or for old Gym's, with spaces of either package. To Baselines'
    ``isinstance`` it is a ``VecEnv`` after ``baselines.common.vec_env.VecEnv.register(SharedMemVecEnv)``.

    Observations are ``(num_envs, *shape)`` arrays of the space's dtype; for a Dict space a dict of them in the
    order of the space; for a Tuple space of k equal shapes one array ``(num_envs, k, *shape)``, for others a
    tuple of arrays. Rewards are ``(num_envs,) reward_dtype``, dones ``(num_envs,) bool``, infos a tuple of
    ``num_envs`` dicts with exactly the keys that the environments returned. All are fresh at every call,
    writable, and the caller's to keep.

    Args:
        env_fns: One function an environment, which makes it (and seeds it). They run in the workers only.
        spaces: Observation and action space that the environments are expected to declare; None to take theirs.
        context: Start method: ``"spawn"`` as in Baselines, ``"forkserver"`` (starts faster) or ``"fork"``; None for the
            best that there is.
        in_series: Environments a worker; the last workers may have one less. The default, 1, gives way to
            ``num_workers``. None for as many workers as usable CPUs.
        num_workers: Number of worker processes instead. 0 runs the environments in this process.
        cpu_affinity: ``"auto"`` gives each worker CPUs of its own, physical cores first; a list of CPUs deals them out
            in turn; a list of sets gives one to each worker. None leaves placement to the system.
        pin_learner: Bind this process to the CPUs that no worker has, until ``close()``.
        threads_per_worker: Cap on the threads of BLAS, OpenMP and torch in each worker; None for no cap.
        start_timeout: Seconds for all environments to be built, or None for no limit.
        reset_timeout: Seconds for a ``reset()``, or None.
        step_timeout: Seconds for a step, or None. A step that took too long can still be received by ``step_wait()``.
        close_timeout: Seconds that environments have to close before their workers are ended.
        watchdog: Seconds of waiting after which the logger ``fastvec`` warns, with the stacks of who does not answer.
        on_failure: ``"restart"`` replaces a worker that dies, exceeds ``step_timeout`` or raises, instead of raising.
        max_restarts, restart_window: At most so many replacements within so many seconds.
        max_episodes_per_worker, max_worker_rss: After so many episodes, or from so many bytes of resident memory on, a
            worker is followed by a new one, without an effect on the data; None for never.
        worker_env: Environment variables for the workers, or a function of the worker's index that returns them.
        worker_output: ``"prefix"`` has what workers print begin with ``[worker 1, envs 4-7]``, line by line.
        preload: Modules to import once in the fork server, besides those that the factories refer to.
        copy: False hands out observations without a copy, in memory that nothing writes to while they are alive.
        reward_dtype: Floating dtype of the rewards: float64 as ``SubprocVecEnv`` makes of Python's floats.
        unsafe_casts: Cast observations into integer spaces even where that changes their values.
        check_nan: Raise a :class:`~fastvec.errors.NanError` where an environment returns NaN or infinity.
        reset_options: Options of automatic resets: ``"keep"`` for the last given ones, or a function ``(env, number)``.
        spare_resets: Environments a worker beside, reset ahead, that take the places of those whose episodes end.
        allow_space_differences: Accept spaces that agree in structure, shapes and dtypes only.

    Attributes:
        num_envs: Number of environments.
        observation_space: As an environment declares it, like ``action_space``.
        spec: The first environment's ``spec``, or None.
        num_workers: Number of worker processes; ``nremotes`` is Baselines' name of it.
        waiting: Whether a step has been started and not received.
        viewer: The window of ``render()``, or None.

    Raises:
        ConfigError: An option is wrong.
        FactoryError: ``env_fns`` holds something else than functions, or one that cannot be pickled.
        SpaceMismatchError: The environments declare different spaces, or others than ``spaces``.
        WorkerTimeoutError: The environments were not ready in time.
        WorkerDiedError: A worker died while they were built.

    An exception in a constructor, ``reset()`` or ``step()`` is raised here as its own type, with an
    :class:`~fastvec.errors.EnvError` (environment, worker, traceback) as its cause.
    """

    metadata: dict[str, Any] = {"render.modes": ["human", "rgb_array"]}

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        spaces: tuple[Any, Any] | None = None,
        context: str | None = "spawn",
        in_series: int | None = 1,
        *,
        copy: bool = True,
        reward_dtype: DTypeLike = np.float64,
        allow_space_differences: bool = False,
        **engine_options: Unpack[EngineOptions],
    ) -> None:
        self._reward_dtype = np.dtype(reward_dtype)
        if self._reward_dtype.kind != "f":
            raise ConfigError(f"reward_dtype must be a floating dtype, got {self._reward_dtype}")
        if spaces is not None and (not isinstance(spaces, Sequence) or len(spaces) != 2):
            raise ConfigError(f"spaces must be a pair (observation_space, action_space), got {spaces!r}")
        factories = check_factories(env_fns)
        options = check_options(type(self), engine_options)
        check_flag("allow_space_differences", allow_space_differences)
        config = EngineConfig.resolve(
            len(factories),
            **options,
            in_series=None if in_series == 1 and options.get("num_workers") is not None else in_series,
            context=context,
            copy=copy,
        )
        self.closed = False
        self.waiting = False
        self.viewer: Any = None
        self.num_envs = config.num_envs
        self.num_workers = self.nremotes = config.num_workers
        adapter = BaselinesAdapter(allow_space_differences, registered_specs() if config.num_workers else ())
        self._engine = make_engine(config, factories, adapter)
        try:
            (declared,) = self._engine.call("its spaces", declaration, env_ids=[0])
            self.observation_space, self.action_space, self.spec = pickle.loads(declared)
            if spaces is not None:
                self.observation_space, self.action_space = spaces
                contradiction = adapter.contradiction(spaces, pickle.loads(self._engine.description.spaces))
                if contradiction is not None:
                    raise SpaceMismatchError(f"the argument `spaces` and the environments {contradiction}")
        except BaseException:
            self._engine.close()
            raise

    @property
    def envs(self) -> list[Any]:
        """The environments themselves, with ``num_workers=0`` only."""
        return [env.env for env in in_process_envs(self._engine)]

    @property
    def unwrapped(self) -> SharedMemVecEnv:
        """This object: what is left of a stack of ``VecEnvWrapper``."""
        return self

    def reset(self) -> Any:
        """Reset every environment; a step under way is dropped.

        Returns:
            The first observations. Infos that ``reset()`` of Gymnasium's API returns have no place here.

        Raises:
            WorkerTimeoutError: ``reset_timeout`` has passed.
        """
        self._assert_not_closed()
        self.waiting = False
        return _stacked(self._engine.reset([{}] * self.num_envs).observations)

    def step_async(self, actions: Any) -> None:
        """Start a step.

        Args:
            actions: ``(num_envs, *shape)``, or a sequence of ``num_envs`` actions.

        Raises:
            ActionError: They do not fit the action space; no environment has advanced.
        """
        self._assert_not_closed()
        self._engine.send(actions)
        self.waiting = True

    def step_wait(self) -> tuple[Any, NDArray[Any], NDArray[np.bool_], tuple[dict[Any, Any], ...]]:
        """Finish the step.

        Returns:
            Observations (where an episode has ended the first one of the next), rewards, dones, infos.

        Raises:
            WorkerTimeoutError: ``step_timeout`` has passed; calling this again goes on waiting.
        """
        self._assert_not_closed()
        result = self._engine.recv()
        self.waiting = False
        dones = (np.frombuffer(result.flags, np.uint8) & _DONE).astype(bool)
        rewards = result.rewards.astype(self._reward_dtype, copy=False)
        return _stacked(result.observations), rewards, dones, tuple(result.infos)

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[np.bool_], tuple[dict[Any, Any], ...]]:
        """``step_async()`` and ``step_wait()``."""
        self.step_async(actions)
        return self.step_wait()

    def close(self) -> None:
        """Close the viewer and the environments and end the workers, in bounded time. Can be called again."""
        if self.closed:
            return
        try:
            if self.viewer is not None:
                self.viewer.close()
        finally:
            self.close_extras()

    def close_extras(self) -> None:
        """The part of ``close()`` that concerns the environments and workers."""
        self.waiting = False
        self._engine.close()
        self.closed = True

    def get_images(self) -> list[Any]:
        """What each environment renders: an ``(height, width, 3) uint8`` image.

        Environments of old Gym's API are asked for ``mode="rgb_array"``; those of Gymnasium's render as they were
        made to, so make them with ``render_mode="rgb_array"``.
        """
        self._assert_not_closed()
        return self._engine.call("render", image, env_ids=range(self.num_envs))

    def render(self, mode: str = "human") -> Any:
        """Show all environments in one picture.

        Args:
            mode: ``"human"`` for a window, ``"rgb_array"`` for the picture.

        Returns:
            The picture, ``(rows * height, columns * width, 3) uint8``, or whether the window is still open.

        Raises:
            ConfigError: Another mode, or an environment that renders no image.
        """
        if mode not in ("human", "rgb_array"):
            raise ConfigError(f"mode must be 'human' or 'rgb_array', got {mode!r}")
        picture = _tiled(self.get_images())
        if mode == "rgb_array":
            return picture
        viewer = self.get_viewer()
        viewer.imshow(picture)
        return viewer.isopen

    def get_viewer(self) -> Any:
        """The window of ``render()``, which ``viewer`` may be set to; made with old Gym if that is installed.

        Raises:
            ConfigError: There is none, and no old Gym to make one.
        """
        if self.viewer is None:
            try:
                rendering = importlib.import_module("gym.envs.classic_control.rendering")
            except ImportError as error:
                raise ConfigError(
                    "the window of render() comes from gym 0.21 or older, which is not installed: set `viewer` to an "
                    "object with imshow(image), isopen and close(), or use render(mode='rgb_array')"
                ) from error
            self.viewer = rendering.SimpleImageViewer()
        return self.viewer

    def __enter__(self) -> SharedMemVecEnv:
        """The environments, closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _assert_not_closed(self) -> None:
        if self.closed:
            raise _UsedAfterCloseError("Trying to operate on a SharedMemVecEnv after calling close()")


def _stacked(observations: Any) -> Any:
    """Batched observations with every tuple of equal shapes made one array, as ``np.stack`` over tuples makes it."""
    if isinstance(observations, dict):
        return {key: _stacked(value) for key, value in observations.items()}
    if isinstance(observations, tuple):
        parts = tuple(_stacked(part) for part in observations)
        if all(isinstance(part, np.ndarray) and part.dtype != object for part in parts):
            return np.stack(parts, axis=1) if len({part.shape for part in parts}) == 1 else parts
        return parts
    return observations


def _tiled(images: Sequence[Any]) -> NDArray[Any]:
    """Images of one shape side by side in a grid as square as possible, the rest of it black."""
    for index, picture in enumerate(images):
        if getattr(picture, "ndim", 0) != 3:
            raise ConfigError(
                f"env {index} rendered no image but {type(picture).__name__}: make Gymnasium's environments with "
                "render_mode='rgb_array'"
            )
    rows = math.ceil(math.sqrt(len(images)))
    columns = math.ceil(len(images) / rows)
    height, width, channels = images[0].shape
    canvas = np.zeros((rows * height, columns * width, channels), images[0].dtype)
    for index, picture in enumerate(images):
        top, left = index // columns * height, index % columns * width
        canvas[top : top + height, left : left + width] = picture
    return canvas
