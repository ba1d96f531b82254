"""The Gymnasium face: a ``VectorEnv`` over the engine.

It knows what Gymnasium's learners rely on (batched spaces, autoreset modes, infos as arrays) and nothing of processes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import Space, logger
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from fastvec import _env_access
from fastvec import _vector_batches as batches
from fastvec._core.config import AutoresetMode as EngineMode
from fastvec._core.config import EngineConfig
from fastvec._core.engines import in_process_envs, make_engine
from fastvec._core.factories import check_factories
from fastvec._core.layout import StepFlag
from fastvec._core.options import check_options
from fastvec._core.state import PENDING, EngineState
from fastvec._core.structure import Leaf, leaves
from fastvec._seeding import Seeding, Seeds, check_seeding, seed_actions, seeds_of
from fastvec._spaces import registered_specs
from fastvec._splits import SplitsVectorEnv
from fastvec._vector_adapter import VectorAdapter
from fastvec._vector_calls import VectorCalls
from fastvec._vector_infos import vectorize_infos, with_masks
from fastvec.errors import CallError, ConfigError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fastvec._core.options import EngineOptions

__all__ = ["SharedMemVectorEnv"]

ObservationMode: TypeAlias = "str | tuple[Space[Any], Space[Any]]"
VectorStep: TypeAlias = "tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]"

_TERMINATED, _TRUNCATED = StepFlag.TERMINATED.value, StepFlag.TRUNCATED.value


class SharedMemVectorEnv(SplitsVectorEnv, VectorCalls):
    """Many environments on few worker processes, with everything that a step moves in shared memory.

    Takes the place of Gymnasium's ``AsyncVectorEnv`` and, with ``num_workers=0``, of its ``SyncVectorEnv``; results
    equal ``SyncVectorEnv``'s bit for bit, however many workers there are.

    Observations are ``(num_envs, *shape)`` arrays of the space's dtype, nested as the space is (a tuple of
    ``num_envs`` values for Text, Graph, Sequence, OneOf and custom spaces), rewards ``(num_envs,) float64``,
    terminations and truncations ``(num_envs,) bool``, infos a dict of arrays with a mask ``_key`` for each key. All
    are fresh at every call, writable, and the caller's to keep.

    Args:
        env_fns: One function an environment, which makes it. They run in the workers only.
        shared_memory, daemon: Without effect: shared memory is always used, and workers never outlive this process.
        copy: False hands out observations without a copy, in memory that nothing writes to while they are alive.
        context: Another name of ``start_method``.
        worker: Must be None: workers here serve several environments and have no pipe.
        observation_mode: ``"same"`` wants equal spaces, ``"different"`` equal shapes; ``(batched, single)`` names them.
        autoreset_mode: When an environment is reset whose episode has ended: an ``AutoresetMode`` or its value.
        max_concurrency: The most environments to run at a time, and so the most workers.
        in_series: Environments a worker; the last workers may have one less.
        num_workers: Worker processes instead; by default one a usable CPU, never more than environments. 0 runs the
            environments in this process, with the same results.
        start_method: ``"forkserver"`` (default where it exists), ``"spawn"`` or ``"fork"``.
        seeding: ``"spawn"`` makes independent seeds of the one that is given, and seeds the action space too;
            ``"sequential"`` counts up from it, as Gymnasium's classes do.
        cpu_affinity: ``"auto"`` gives each worker CPUs of its own, physical cores first; a list of CPUs deals them out
            in turn; a list of sets gives one to each worker. None leaves placement to the system.
        pin_learner: Bind this process to the CPUs that no worker has, until ``close()``.
        threads_per_worker: Cap on the threads of BLAS, OpenMP and torch in each worker; None for no cap.
        start_timeout: Seconds for all environments to be built, or None for no limit.
        reset_timeout, step_timeout: Seconds for a reset or a step, or None, where none are given to wait.
        close_timeout: Seconds that environments have to close before their workers are ended.
        watchdog: Seconds of waiting after which the logger ``fastvec`` warns, with the stacks of who does not answer.
        on_failure, max_restarts, restart_window: ``"restart"`` replaces a worker that dies, exceeds ``step_timeout`` or
            raises, at most so many times within so many seconds.
        max_episodes_per_worker, max_worker_rss: After so many episodes, or from so many bytes of resident memory on, a
            worker is followed by a new one, without an effect on the data; None for never.
        worker_env: Environment variables for the workers, or a function of the worker's index that returns them.
        worker_output: ``"prefix"`` has what workers print begin with ``[worker 1, envs 4-7]``, line by line.
        preload: Modules to import once in the fork server, besides those that the factories refer to.
        unsafe_casts: Cast observations into integer spaces even where that changes their values.
        check_nan: Raise a :class:`~fastvec.errors.NanError` where an environment returns NaN or infinity.
        with_step: Methods without arguments, and attributes, whose values come with each step: ``call()`` is then free.
        reset_options: Options of automatic resets: ``"keep"`` for the last given ones, or a function ``(env, number)``.
        spare_resets: Environments a worker beside, reset ahead, that take the places of those whose episodes end.

    Raises:
        ConfigError: An option is wrong.
        FactoryError: ``env_fns`` holds something else than functions, or one that cannot be pickled.
        SpaceMismatchError: The environments declare spaces that differ in more than ``observation_mode`` allows.
        WorkerTimeoutError: The environments were not ready in time.
        WorkerDiedError: A worker died while they were built.

    What an environment raises is raised here as its own type, with an :class:`~fastvec.errors.EnvError` as cause.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: None = None,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        in_series: int | None = None,
        start_method: str | None = None,
        with_step: Sequence[str] = (),
        seeding: Seeding = "sequential",
        **engine_options: Unpack[EngineOptions],
    ) -> None:
        super().__init__()
        if worker is not None:
            raise ConfigError(
                "worker must be None: a worker of AsyncVectorEnv serves one environment over a pipe, ours several "
                "over shared memory. Put what it does into a wrapper of the environment"
            )
        self.observation_mode = observation_mode
        self.autoreset_mode = batches.resolve_mode(autoreset_mode)
        self._seeding = check_seeding(seeding)
        factories = check_factories(env_fns)
        resolved = EngineConfig.resolve(
            len(factories),
            **check_options(type(self), engine_options),
            in_series=in_series,
            start_method=start_method,
            context=context,
            max_workers=max_concurrency,
            autoreset_mode=EngineMode(self.autoreset_mode.value),
            copy=copy,
            info_columns=True,
            with_step=with_step,
        )
        self.num_envs, self.num_workers = resolved.num_envs, resolved.num_workers
        self.start_method = resolved.start_method
        adapter = VectorAdapter(
            allow_space_differences=observation_mode != "same",
            registered=registered_specs() if resolved.num_workers else (),
            single_space=batches.single_space(observation_mode),
        )
        self._engine = make_engine(resolved, factories, adapter)
        self._tree = self._engine.description.observation
        self._has_objects = any(leaf.spec is None for leaf in leaves(self._tree))
        # Whose episode has ended and waits for its reset, where nobody resets it unasked.
        self._ended = np.zeros(self.num_envs, np.bool_)
        try:
            self._describe()
        except BaseException:
            self._engine.close()
            raise

    def _describe(self) -> None:
        """Set what ``VectorEnv`` promises to have."""
        self.single_observation_space, self.single_action_space = cloudpickle.loads(self._engine.description.spaces)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        spaces = [self.single_observation_space] * self.num_envs
        if self.observation_mode == "different":
            spaces = self._call("observation_space", _env_access.get_attr, "observation_space")
        self.observation_space = batches.batched_space(self.observation_mode, spaces)
        ((self.metadata, self.render_mode),) = self._engine.call("metadata", _env_access.rendering, env_ids=[0])
        self.metadata["autoreset_mode"] = self.autoreset_mode

    @property
    def envs(self) -> list[gymnasium.Env[Any, Any]]:
        """The environments themselves, with ``num_workers=0`` only."""
        return in_process_envs(self._engine)

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset every environment, or those that ``options["reset_mask"]`` selects.

        Args:
            seed: One for each environment, or a number ``s`` for ``s, s + 1, ...``.
            options: Given to each environment, without ``reset_mask``, a ``(num_envs,) bool`` array. Left unchanged.

        Returns:
            The observations of all environments, and the infos of those that were reset.
        """
        if not (options and "reset_mask" in options):
            self._engine.drop()  # nothing that is pending, after Ctrl-C for example, matters to a whole reset
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(self, seed: Seeds = None, options: dict[str, Any] | None = None) -> None:
        """Start a :meth:`reset`."""
        batches.check_idle(self._engine.state, "reset_async")
        options, mask = batches.split_options(options, self.num_envs)
        arguments = [{"seed": one, "options": options} for one in seeds_of(seed, self.num_envs, self._seeding)]
        seed_actions(seed, self.num_envs, self._seeding, self.action_space, self.single_action_space)
        self._engine.send_reset(arguments, mask)
        self._ended = self._ended & (False if mask is None else ~mask)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Finish the reset.

        Args:
            timeout: Seconds to wait. After a :class:`~fastvec.errors.WorkerTimeoutError` the reset is still pending.
        """
        batches.check_pending(self._engine.state, EngineState.RESETTING)
        result = self._engine.recv_reset(timeout)
        return self._batched(result.observations), vectorize_infos(enumerate(result.infos), self.num_envs)

    def step(self, actions: Any) -> VectorStep:
        """Step every environment.

        Args:
            actions: A batch, as ``action_space`` has it, or a sequence of ``num_envs`` actions.

        Returns:
            Observations, rewards, terminations, truncations, infos.

        Raises:
            ActionError: They do not fit the action space; no environment has advanced.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start a :meth:`step`."""
        batches.check_idle(self._engine.state, "step_async")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            raise CallError(
                f"the episodes of envs {np.flatnonzero(self._ended).tolist()} have ended, and with autoreset_mode="
                f"{self.autoreset_mode.value!r} nobody resets them: call reset(options={{'reset_mask': ...}}) first"
            )
        action = self._engine.description.action
        if not isinstance(action, Leaf):
            actions = list(batches.unbatched(actions, action, self.action_space, self.num_envs, "actions"))
        self._engine.send(actions)

    def step_wait(self, timeout: float | None = None) -> VectorStep:
        """Finish the step.

        Args:
            timeout: Seconds to wait. After a :class:`~fastvec.errors.WorkerTimeoutError` the step is still pending.
        """
        batches.check_pending(self._engine.state, EngineState.STEPPING)
        observations, rewards, flags, infos, finals, reset_infos = self._engine.recv(timeout)
        bits = np.frombuffer(flags, np.uint8)
        terminations, truncations = bits & _TERMINATED != 0, bits & _TRUNCATED != 0
        has_ended = flags != bytes(self.num_envs)
        if has_ended:
            self._ended = terminations | truncations
        if isinstance(infos, dict):
            vectorized = with_masks(infos, self.num_envs)
        else:
            said: Iterator[tuple[int, dict[str, Any]]] = enumerate(infos)
            if has_ended and self.autoreset_mode is AutoresetMode.SAME_STEP:
                said = batches.with_finals(infos, self._ended.tolist(), finals, reset_infos)
            vectorized = vectorize_infos(said, self.num_envs)
        return self._batched(observations), rewards, terminations, truncations, vectorized

    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> None:
        """Start a step of some environments, while others may be pending; :meth:`recv` gives those that are ready.

        Args:
            actions: One for each of ``env_ids``, in their order, as a batch or a sequence.
            env_ids: Whose they are: none may be pending. None for all, in their order.

        Raises:
            ActionError: They do not fit the action space, or an index is wrong; nothing has been sent.
            CallError: One of these environments has not been received since its last action.
        """
        if self._engine.state is not EngineState.SENDING:
            batches.check_idle(self._engine.state, "send")
        chosen = range(self.num_envs) if env_ids is None else [operator.index(env_id) for env_id in env_ids]
        action = self._engine.description.action
        if not isinstance(action, Leaf):
            actions = list(batches.unbatched(actions, action, self.action_space, len(chosen), "actions"))
        self._engine.send_some(actions, chosen)

    def recv(self, min_envs: int = 1, timeout: float | None = None) -> VectorStep:
        """Finish the step of the environments that are ready, and of as many as it takes to have ``min_envs`` of them.

        Args:
            min_envs: At least so many.
            timeout: Seconds to wait; None for ``step_timeout``. After a :class:`~fastvec.errors.WorkerTimeoutError` all
                is still pending, and those that are ready can be received with a lower ``min_envs``.

        Returns:
            What :meth:`step` returns, all of it fresh, with a row for each of ``infos["env_ids"]``: ``(k,) int64``, in
            the order in which they were ready.
        """
        batches.check_open(self._engine.state, "recv")
        env_ids, observations, rewards, flags, infos, finals, reset_infos = self._engine.recv_some(min_envs, timeout)
        terminations, truncations = flags & _TERMINATED != 0, flags & _TRUNCATED != 0
        said: Iterator[tuple[int, dict[str, Any]]] = enumerate(infos)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            said = batches.with_finals(infos, (terminations | truncations).tolist(), finals, reset_infos)
        vectorized = vectorize_infos(said, len(env_ids)) | {"env_ids": env_ids}
        return self._batched(observations), rewards, terminations, truncations, vectorized

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the environments and end the workers, in bounded time.

        Args:
            timeout: Seconds that environments have to close; None for ``close_timeout``.
            terminate: Give them none.
        """
        if not hasattr(self, "_engine"):  # the constructor failed: older versions of Gymnasium close it all the same
            return
        state = self._engine.state
        self._engine.close(0.0 if terminate else timeout)
        if state in PENDING:
            logger.warn(f"Calling `close` while waiting for a pending call to `{state.value}` to complete.")

    def __enter__(self) -> SharedMemVectorEnv:
        """The environments, closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _batched(self, observations: Any) -> Any:
        return batches.with_tuples(observations, self._tree) if self._has_objects else observations
