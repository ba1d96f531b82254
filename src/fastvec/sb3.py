"""The Stable-Baselines3 face: a ``VecEnv`` over the engine.

It knows what SB3's learners and wrappers rely on (same-step resets, ``terminal_observation``,
``TimeLimit.truncated``, float32 rewards, fresh dicts) and nothing of processes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
import gymnasium
import numpy as np
from numpy.typing import DTypeLike, NDArray

try:
    from stable_baselines3.common.vec_env.base_vec_env import (
        VecEnvObs,
        VecEnvStepReturn,
    )
except ImportError as error:
    raise ImportError(
        "SharedMemVecEnv is a Stable-Baselines3 VecEnv and needs stable-baselines3: pip install 'fastvec[sb3]'"
    ) from error

from fastvec import _env_access
from fastvec._core.checks import check_flag
from fastvec._core.config import EngineConfig
from fastvec._core.engines import in_process_envs, make_engine
from fastvec._core.factories import check_factories
from fastvec._core.layout import StepFlag
from fastvec._core.options import check_options
from fastvec._sb3_adapter import Sb3Adapter
from fastvec._sb3_calls import VecEnvCalls
from fastvec._sb3_render import tiled
from fastvec._seeding import Seeding, Seeds, check_seeding, seed_actions, seeds_of
from fastvec._spaces import registered_specs
from fastvec._splits import SplitsVecEnv
from fastvec._torch_threads import tell_of_spinning
from fastvec.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fastvec._core.options import EngineOptions
    from fastvec._sb3_pipelined import PipelinedPPO

__all__ = ["PipelinedPPO", "SharedMemVecEnv"]


def __getattr__(name: str) -> Any:
    """The learner, imported once it is asked for: who only steps environments does without its package."""
    if name == "PipelinedPPO":
        from fastvec import _sb3_pipelined

        return _sb3_pipelined.PipelinedPPO
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_TERMINATED, _TRUNCATED = StepFlag.TERMINATED.value, StepFlag.TRUNCATED.value
_TRUNCATED_IS_NUMPY = StepFlag.TRUNCATED_IS_NUMPY.value


class SharedMemVecEnv(SplitsVecEnv, VecEnvCalls):
    """Many environments on few worker processes, with everything that a step moves in shared memory.

    Takes the place of Stable-Baselines3's ``SubprocVecEnv`` and, with ``num_workers=0``, of its ``DummyVecEnv``;
    results equal ``DummyVecEnv``'s bit for bit, however many workers there are.

    Observations are ``(num_envs, *shape)`` arrays of the space's dtype (nested as the space is; one object a row for
    Text, Graph, Sequence, OneOf and custom spaces), rewards ``(num_envs,) reward_dtype``, dones ``(num_envs,) bool``,
    infos a list of ``num_envs`` dicts. All are fresh at every call, writable, and the caller's to keep.

    Args:
        env_fns: One function an environment, which makes it. They run in the workers only.
        start_method: ``"forkserver"`` (default where it exists), ``"spawn"`` or ``"fork"``.
        in_series: Environments a worker; the last workers may have one less.
        num_workers: Number of worker processes instead; by default as many as there are usable CPUs, never more than
            environments. 0 runs the environments in this process, with the same results.
        context: Another name of ``start_method``.
        seeding: ``"spawn"`` makes independent seeds of the one that is given, and seeds the action space too;
            ``"sequential"`` counts up from it, as SB3's classes do.
        cpu_affinity: ``"auto"`` gives each worker CPUs of its own, physical cores first; or a list of CPUs, which are
            dealt out in turn, or of sets of them, one a worker. None leaves placement to the system.
        pin_learner: Bind this process to the CPUs that no worker has, until ``close()``.
        threads_per_worker: Cap on the threads of BLAS, OpenMP and torch in each worker; None for no cap.
        copy: False hands out observations without a copy, in memory that nothing writes to while they are alive.
        start_timeout, reset_timeout, step_timeout: Seconds until the environments are built, for a reset, a step; None
            for no limit. A late step can still be received.
        close_timeout: Seconds that environments have to close before their workers are ended.
        watchdog: Seconds of waiting after which the logger ``fastvec`` warns, with the stacks of who does not answer.
        on_failure, max_restarts, restart_window: ``"restart"`` replaces a worker that dies, exceeds ``step_timeout`` or
            raises, at most so many times within so many seconds.
        max_episodes_per_worker, max_worker_rss: After so many episodes, or from so many bytes of resident memory on, a
            worker is followed by a new one, without an effect on the data; None for never.
        worker_env: Environment variables for the workers, or a function of the worker's index that returns them.
        worker_output: ``"prefix"`` has what workers print begin with ``[worker 1, envs 4-7]``, line by line.
        preload: Modules to import once in the fork server, besides those that the factories refer to.
        reward_dtype: Floating dtype of the rewards: float32 as in ``DummyVecEnv``.
        unsafe_casts: Cast observations into integer spaces even where that changes their values.
        check_nan: Raise a :class:`~fastvec.errors.NanError` where an environment returns NaN or infinity.
        reset_options: Options of automatic resets: ``"keep"`` for the last given ones, or a function ``(env, number)``.
        spare_resets: Environments a worker beside, reset ahead, that take the places of those whose episodes end.
        with_step: Methods without arguments, and attributes, whose values come with each step: asking is then free.
        allow_space_differences: Accept environments whose spaces agree in structure, shapes and dtypes only.

    Raises:
        ConfigError: An option is wrong.
        FactoryError: ``env_fns`` holds something else than functions, or one that cannot be pickled.
        SpaceMismatchError: The environments declare different spaces.
        WorkerTimeoutError, WorkerDiedError: The environments were not ready in time, or a worker died over them.

    What an environment raises is raised here as its own type, with an :class:`~fastvec.errors.EnvError` as cause.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        start_method: str | None = None,
        *,
        in_series: int | None = None,
        context: str | None = None,
        copy: bool = True,
        with_step: Sequence[str] = (),
        seeding: Seeding = "sequential",
        reward_dtype: DTypeLike = np.float32,
        allow_space_differences: bool = False,
        **engine_options: Unpack[EngineOptions],
    ) -> None:
        self._seeding = check_seeding(seeding)
        self._reward_dtype = np.dtype(reward_dtype)
        if self._reward_dtype.kind != "f":
            raise ConfigError(f"reward_dtype must be a floating dtype, got {self._reward_dtype}")
        factories = check_factories(env_fns)
        check_flag("allow_space_differences", allow_space_differences)
        config = EngineConfig.resolve(
            len(factories),
            **check_options(type(self), engine_options),
            in_series=in_series,
            start_method=start_method,
            context=context,
            with_step=with_step,
            copy=copy,
        )
        self.closed = False
        self.waiting = False
        self._has_told_of_no_image = False
        self._no_flags = bytes(len(factories))
        self.num_workers, self._usable_cpus = config.num_workers, config.usable_cpus
        self.start_method = config.start_method
        adapter = Sb3Adapter(allow_space_differences, registered_specs() if config.num_workers else ())
        self._engine = make_engine(config, factories, adapter)
        try:
            self.num_envs = config.num_envs
            observation_space, action_space = cloudpickle.loads(self._engine.description.spaces)
            super().__init__(self.num_envs, observation_space, action_space)
            self.metadata = self._call("metadata", _env_access.metadata, indices=0)[0]
        except BaseException:
            self._engine.close()
            raise

    @property
    def envs(self) -> list[gymnasium.Env[Any, Any]]:
        """The environments themselves, with ``num_workers=0`` only."""
        return in_process_envs(self._engine)

    def reset(self) -> VecEnvObs:
        """Reset every environment, with the seeds and options set for it.

        Returns:
            The first observations.
        """
        self.waiting = False
        tell_of_spinning(self.num_workers, self._usable_cpus)
        observations, self.reset_infos = self._engine.reset(
            [
                {"seed": seed, "options": options} if options else {"seed": seed}
                for seed, options in zip(self._seeds, self._options, strict=True)
            ]
        )
        self._reset_seeds()
        self._reset_options()
        return observations  # type: ignore[no-any-return]

    def seed(self, seed: Seeds = None) -> Sequence[int | None]:
        """Seed the environments at the next ``reset()``.

        Args:
            seed: One for each environment, or one that they all follow from; None for one drawn at random.

        Returns:
            The seeds.
        """
        if seed is None:
            seed = super().seed()[0]
        self._seeds = seeds_of(seed, self.num_envs, self._seeding)
        seed_actions(seed, self.num_envs, self._seeding, self.action_space)
        return self._seeds

    def step_async(self, actions: Any) -> None:
        """Start a step.

        Args:
            actions: ``(num_envs, *shape)``, or a sequence of ``num_envs`` actions.

        Raises:
            ActionError: They do not fit the action space; no environment has advanced.
        """
        self._engine.send(actions)
        self.waiting = True

    def step_wait(self) -> VecEnvStepReturn:
        """Finish the step.

        Returns:
            Observations, rewards, dones, infos.

        Raises:
            WorkerTimeoutError: ``step_timeout`` has passed; calling this again goes on waiting.
        """
        observations, rewards, flags, infos, finals, reset_infos = self._engine.recv()
        self.waiting = False
        dones = np.zeros(self.num_envs, bool)
        for info in infos:
            info["TimeLimit.truncated"] = False
        if flags != self._no_flags:
            for index, flag in enumerate(flags):
                # The value of `truncated and not terminated`, type included.
                if flag & _TRUNCATED:
                    infos[index]["TimeLimit.truncated"] = not flag & _TERMINATED
                elif flag & _TRUNCATED_IS_NUMPY:
                    infos[index]["TimeLimit.truncated"] = np.False_
                if flag & (_TERMINATED | _TRUNCATED):
                    dones[index] = True
                    infos[index]["terminal_observation"] = finals[index]
                    self.reset_infos[index] = reset_infos.get(index, {})
        return observations, rewards.astype(self._reward_dtype), dones, infos

    def close(self) -> None:
        """Close the environments and end the workers, in bounded time. Can be called again."""
        self.closed = True
        self.waiting = False
        self._engine.close()

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """An image of each environment, or None where it renders none."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"The render mode is {self.render_mode}, but this method assumes it is `rgb_array` to obtain images.",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return self._call("render", _env_access.render)

    def render(self, mode: str | None = None) -> NDArray[Any] | None:
        """Show all environments in one picture; those that render no image are left out, with one warning.

        Args:
            mode: ``"human"`` for a window; None for what ``render_mode`` says.

        Returns:
            The picture, ``(rows * height, columns * width, channels)``; None for a window, and where there is no image.
        """
        if self.render_mode != "rgb_array" or mode not in (None, "rgb_array", "human"):
            return super().render(mode)
        picture, missing = tiled(self.get_images())
        if missing and not self._has_told_of_no_image:
            self._has_told_of_no_image = True
            warnings.warn(
                f"render() leaves out envs {list(missing)}: expected images (height, width, channels), got "
                f"{', '.join(sorted(set(missing.values())))}",
                stacklevel=2,
            )
        if picture is None or mode != "human":
            return picture
        import cv2

        cv2.imshow("vecenv", picture[:, :, ::-1])
        cv2.waitKey(1)
        return None

    def __enter__(self) -> SharedMemVecEnv:
        """The environments, closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
