"""What a worker process is like: where it runs, what it imports, what it costs, how it is started."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest
from engines import START_METHODS, eventually, make_engine, reset
from toys import CountingEnv

from fastvec import errors
from fastvec._core.sync import semaphores_work
from fastvec._env_access import get_attr


class ProbeEnv(CountingEnv):
    """Tells what its process is like, as seen in the constructor."""

    def __init__(self, env_id=0):
        super().__init__(env_id)
        self.pid = os.getpid()
        self.affinity = os.sched_getaffinity(0)
        self.environ = dict(os.environ)
        self.modules = sorted(sys.modules)
        self.cwd = os.getcwd()
        self.draw = (np.random.random(), __import__("random").random())


def probe(name, n=2, **options):
    """An attribute of n environments' constructors, one worker each."""
    engine = make_engine([functools.partial(ProbeEnv, i) for i in range(n)], **{"num_workers": n, **options})
    try:
        return engine.call("get_attr", get_attr, name, env_ids=range(n))
    finally:
        engine.close()


@pytest.mark.parametrize("method", START_METHODS)
def test_environments_are_built_in_the_workers_only(method, tmp_path):
    """Each factory runs once in all, none of them in this process."""
    log = tmp_path / "log"
    log.touch()

    def make():
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return CountingEnv(0)

    make_engine([make] * 4, start_method=method).close()
    pids = log.read_text().split()
    assert len(pids) == 4
    assert len(set(pids)) == 2
    assert str(os.getpid()) not in pids


@pytest.mark.parametrize("method", START_METHODS)
def test_each_worker_is_pinned_before_it_builds(method):
    """A list of CPUs is dealt out in turn, sets go one to each worker; this process keeps its mask."""
    cpus = sorted(os.sched_getaffinity(0))
    mask = os.sched_getaffinity(0)
    assert probe("affinity", start_method=method, cpu_affinity=cpus[:1]) == [{cpus[0]}] * 2
    if len(cpus) > 1:
        assert probe("affinity", start_method=method, cpu_affinity=[{cpus[0]}, {cpus[1]}]) == [{cpus[0]}, {cpus[1]}]
        placed = probe("affinity", start_method=method, cpu_affinity="auto")
        assert all(len(one) == 1 for one in placed)
        assert placed[0] != placed[1]
    assert probe("affinity", start_method=method) == [mask] * 2
    assert os.sched_getaffinity(0) == mask


def test_pinning_stays_within_the_affinity_mask():
    """Under `taskset -c N` every worker runs on N."""
    cpu = max(os.sched_getaffinity(0))
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        assert probe("affinity", cpu_affinity="auto") == [{cpu}] * 2
        with pytest.raises(errors.ConfigError, match=f"this process may use \\[{cpu}\\]"):
            probe("affinity", cpu_affinity=[cpu + 1])
    finally:
        os.sched_setaffinity(0, mask)


def test_the_learner_is_pinned_on_request_and_released():
    """pin_learner binds this process to what the workers leave, until the engine is closed."""
    mask = os.sched_getaffinity(0)
    if len(mask) < 2:
        pytest.skip("one CPU")
    cpu = min(mask)
    engine = make_engine([ProbeEnv], num_workers=1, cpu_affinity=[cpu], pin_learner=True)
    assert os.sched_getaffinity(0) == mask - {cpu}
    assert engine.call("get_attr", get_attr, "affinity", env_ids=[0]) == [{cpu}]
    engine.close()
    assert os.sched_getaffinity(0) == mask


@pytest.mark.parametrize("method", START_METHODS)
def test_variables_are_set_before_the_imports_of_environments(method):
    """worker_env, a mapping or a function of the worker, is in force; so is what was set here a moment ago."""
    os.environ["FASTVEC_TEST_LATE"] = "yes"
    try:
        found = probe("environ", start_method=method, worker_env={"CUDA_VISIBLE_DEVICES": ""})
        assert [(e["CUDA_VISIBLE_DEVICES"], e["FASTVEC_TEST_LATE"]) for e in found] == [("", "yes")] * 2
        found = probe("environ", start_method=method, worker_env=lambda worker: {"RANK_OF": str(worker)})
        assert [e["RANK_OF"] for e in found] == ["0", "1"]
    finally:
        del os.environ["FASTVEC_TEST_LATE"]


def test_mpi_variables_do_not_reach_workers(monkeypatch):
    """A worker of an MPI rank must not take itself for that rank."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert "OMPI_COMM_WORLD_RANK" not in probe("environ", n=1)[0]


class ThreadsEnv(ProbeEnv):
    """Tells how many threads its numerical libraries use."""

    def __init__(self):
        super().__init__()
        import threadpoolctl

        np.ones((64, 64)) @ np.ones((64, 64))
        self.pools = sorted({pool["num_threads"] for pool in threadpoolctl.threadpool_info()})


@pytest.mark.parametrize("method", START_METHODS)
def test_compute_threads_are_capped(method):
    """BLAS uses one thread in a worker under every start method, and more on request; this process is unchanged."""
    import threadpoolctl

    before = threadpoolctl.threadpool_info()
    for threads in (1, 2):
        engine = make_engine([ThreadsEnv], num_workers=1, start_method=method, threads_per_worker=threads)
        assert engine.call("get_attr", get_attr, "pools", env_ids=[0]) == [[threads]]
        engine.close()
    assert threadpoolctl.threadpool_info() == before


@pytest.mark.parametrize("method", START_METHODS)
def test_unseeded_workers_differ(method):
    """The global generators of NumPy and Python are not copies of each other."""
    np.random.random()
    draws = probe("draw", n=3, start_method=method)
    assert len({a for a, _ in draws}) == 3
    assert len({b for _, b in draws}) == 3


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_imports_no_learning_framework(method):
    """Neither torch nor Stable-Baselines3 are in a worker whose environment does not need them."""
    code = f"""
    import sys
    sys.path.insert(0, {os.path.dirname(__file__)!r})
    try:
        import stable_baselines3, torch  # in the program, as a training script has them
    except ImportError:
        pass
    from test_workers import probe
    print(*probe("modules", n=1, start_method={method!r})[0])
    """
    modules = run_script(code).split()
    assert "numpy" in modules
    assert not {"torch", "stable_baselines3", "matplotlib", "pytest"} & (set(modules) - pytest_modules())


def pytest_modules():
    """`test_workers` itself imports pytest; nothing else may."""
    return {"pytest"}


def run_script(code, *, path=None, timeout=120):
    """Run a program; its output. It must succeed and be silent on stderr."""
    command = [sys.executable, str(path)] if path else [sys.executable, "-c", textwrap.dedent(code)]
    # With more threads PyTorch would be talked of: see test_torch_threads.py.
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environ)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_scripts_need_no_main_guard(method, tmp_path):
    """An unguarded script whose environment class is its own runs once, and its exceptions come back as its own."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        import gymnasium, numpy as np
        from engines import make_engine, reset
        from fastvec._env_access import call_method, get_attr

        print("imported")

        class OwnError(Exception):
            pass

        class OwnEnv(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
            action_space = gymnasium.spaces.Discrete(2)

            def reset(self, *, seed=None, options=None):
                return np.full(2, 0.5, np.float32), {{}}

            def fail(self):
                raise OwnError("mine")

            def me(self):
                return self.__class__

        gymnasium.register("Own-v0", entry_point=OwnEnv)
        engine = make_engine([lambda: gymnasium.make("Own-v0", disable_env_checker=True)] * 2, start_method={method!r})
        print(reset(engine).observations.tolist())
        print(engine.call("me", call_method, "me", env_ids=[0])[0] is OwnEnv)
        try:
            engine.call("fail", call_method, "fail", env_ids=[0])
        except OwnError as error:
            print("own error", error)
        engine.close()
        """)
    )
    assert run_script(None, path=script) == "imported\n[[0.5, 0.5], [0.5, 0.5]]\nTrue\nown error mine\n"


def test_a_class_defined_in_a_notebook_cell_works():
    """IPython's __main__ has no file; classes defined there travel by value."""
    pytest.importorskip("IPython")
    code = textwrap.dedent(f"""
    import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
    from engines import make_engine, reset
    from toys import CountingEnv
    class CellEnv(CountingEnv):
        pass
    for method in ("spawn", "forkserver"):
        engine = make_engine([lambda: CellEnv(3)], start_method=method)
        print(reset(engine).observations.tolist())
        engine.close()
    """)
    done = subprocess.run([sys.executable, "-m", "IPython", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.count("[[3.0, 0.0, 0.0]]") == 2, done.stderr


def test_a_factory_that_cannot_be_pickled_names_the_variable():
    """The error says which closure variable holds the lock, and what to do; fork needs no pickle."""
    guard = threading.Lock()

    def make():
        assert guard
        return CountingEnv(0)

    with pytest.raises(
        errors.FactoryError, match=r"env_fns\[0\] cannot be sent .* variable 'guard' of env_fns\[0\], a lock"
    ):
        make_engine([make] * 2, start_method="spawn")
    make_engine([make] * 2, start_method="fork").close()


def test_factories_that_close_over_a_loop_variable_are_warned_of():
    """`[lambda: make(i) for i in range(4)]` makes environment 3 four times."""
    from fastvec._core.factories import check_factories

    def loop():
        return [lambda: CountingEnv(i) for i in range(4)]  # noqa: B023 - the mistake itself

    with pytest.warns(UserWarning, match="all 4 environment factories see i = 3"):
        check_factories(loop())
    check_factories([lambda i=i: CountingEnv(i) for i in range(4)])


def test_fork_warns_of_other_threads_once():
    """Another Python thread is a reason for a warning; BLAS's own threads are not."""
    np.ones((300, 300)) @ np.ones((300, 300))
    make_engine([functools.partial(CountingEnv, 0)]).close()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="watcher")
    thread.start()
    try:
        with pytest.warns(RuntimeWarning, match=r"1 other Python threads are running \(watcher\)") as record:
            make_engine([functools.partial(CountingEnv, 0)]).close()
        assert len(record) == 1
    finally:
        stop.set()
        thread.join()


def test_fork_is_refused_once_cuda_is_initialised(monkeypatch):
    """A stand-in for torch says that CUDA runs: nothing is forked, the message names the way out."""
    import types

    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(errors.ConfigError, match=r"CUDA is initialised .*forkserver"):
        make_engine([functools.partial(CountingEnv, 0)])


def test_environments_may_have_processes_of_their_own():
    """Workers are no daemons: an environment can use multiprocessing; what it leaves running is ended."""

    class ParentEnv(CountingEnv):
        def __init__(self):
            super().__init__(0)
            import multiprocessing

            self.child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
            self.child.start()
            self.child_pid = self.child.pid

    engine = make_engine([ParentEnv])
    (pid,) = engine.call("get_attr", get_attr, "child_pid", env_ids=[0])
    assert psutil.pid_exists(pid)
    engine.close()


def test_the_processes_of_the_program_outlive_a_forked_worker():
    """A fork has the program's list of its children, too; with close() a worker ends its own only."""
    other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
    other.start()
    try:
        make_engine([lambda: CountingEnv(0)] * 2).close()
        assert other.is_alive()
    finally:
        other.kill()
        other.join()
        other.close()


def test_without_semaphores_the_channel_rings(monkeypatch):
    """The portable way to wake a worker gives the same results."""
    if not semaphores_work():
        pytest.skip("this is the only way here")
    monkeypatch.setattr("fastvec._core.pool.semaphores_work", lambda: False)
    engine = make_engine([functools.partial(CountingEnv, i, horizon=3) for i in range(3)])
    reset(engine)
    for count in (1, 2):
        engine.send(np.zeros(3, np.int64))
        assert engine.recv().rewards.tolist() == [count] * 3
    assert engine.call("get_attr", get_attr, "env_id", env_ids=[2, 0]) == [2, 0]
    engine.send([1, 2, 3])
    assert [info["action"] for info in engine.recv().infos] == [1, 2, 3]
    engine.close()


def test_an_idle_worker_of_make_vec_env_is_small():
    """Private memory of a fork server's worker that wraps its environments in SB3's Monitor: at most 15 MB."""
    pytest.importorskip("stable_baselines3")
    code = """
    import psutil
    from stable_baselines3.common.env_util import make_vec_env
    from fastvec import SharedMemVecEnv

    venv = make_vec_env("BipedalWalker-v3", n_envs=4, vec_env_cls=SharedMemVecEnv, vec_env_kwargs={"num_workers": 2})
    venv.reset()
    for worker in venv._engine._pool.workers:
        memory = psutil.Process(worker.process.pid).memory_full_info()
        print(memory.uss)
    venv.close()
    """
    sizes = [int(line) / 2**20 for line in run_script(code).split()]
    assert len(sizes) == 2
    assert max(sizes) <= 15


def test_registered_environments_are_known_to_workers():
    """gymnasium.register in this program is enough, also under spawn."""
    gymnasium.register("Registered-v0", entry_point=CountingEnv, kwargs={"env_id": 7})
    try:
        for method in START_METHODS:
            engine = make_engine(
                [functools.partial(gymnasium.make, "Registered-v0", disable_env_checker=True)], start_method=method
            )
            assert reset(engine).observations.tolist() == [[7, 0, 0]]
            engine.close()
    finally:
        del gymnasium.registry["Registered-v0"]


@pytest.mark.parametrize("method", START_METHODS)
def test_classes_of_the_script_come_back_as_themselves(method, tmp_path):
    """Instances, enum members and exceptions of classes in __main__ are the program's own, whose attributes stay."""
    script = tmp_path / "own.py"
    script.write_text(
        textwrap.dedent(f"""
        import enum, sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        import numpy as np
        from engines import make_engine, reset
        from fastvec._env_access import call_method
        from toys import CountingEnv

        class Color(enum.IntEnum):
            RED = 1

        class Point:
            total = 0

        class OwnError(Exception):
            pass

        class OwnEnv(CountingEnv):
            def step(self, action):
                Point.total += 1
                return (*super().step(action)[:4], {{"point": Point(), "color": Color.RED}})

            def fail(self, point):
                assert isinstance(point, Point) or {method!r} != "fork"
                raise OwnError

        engine = make_engine([lambda: OwnEnv(0)] * 2, start_method={method!r})
        reset(engine)
        Point.total = 1000
        for _ in range(2):
            engine.send(np.zeros(2, np.int64))
            infos = engine.recv().infos
        print(all(type(info["point"]) is Point and info["color"] is Color.RED for info in infos), Point.total)
        try:
            engine.call("fail", call_method, "fail", Point(), env_ids=[1])
        except OwnError:
            print("own error")
        engine.close()
        """)
    )
    assert run_script(None, path=script) == "True 1000\nown error\n"


def test_closing_gives_the_memory_back_while_others_live():
    """Workers that are forked later do not hold on to an earlier engine's block."""

    def mapped(pid):
        with open(f"/proc/{pid}/maps") as maps:
            return sum("/memfd:fastvec" in line for line in maps)

    first = make_engine([functools.partial(CountingEnv, 0)])
    second = make_engine([functools.partial(CountingEnv, 0)])
    assert mapped(second._pool.workers[0].process.pid) == 1
    first.close()
    second.close()


class StartsProcessEnv(CountingEnv):
    """Starts a process in its constructor and leaves it to itself."""

    def __init__(self):
        super().__init__(0)
        self.child_pid = subprocess.Popen(["sleep", "1000"]).pid


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("ending", ["close", "SIGKILL"])
def test_what_environments_start_ends_with_their_worker(method, ending):
    """However that ends."""
    engine = make_engine([StartsProcessEnv] * 2, num_workers=1, start_method=method)
    children = engine.call("get_attr", get_attr, "child_pid", env_ids=[0, 1])
    if ending == "SIGKILL":
        os.kill(engine._pool.workers[0].process.pid, signal.SIGKILL)
        with pytest.raises(errors.WorkerDiedError):
            engine.call("get_attr", get_attr, "child_pid", env_ids=[0])
    engine.close()
    assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in children))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs F_SETSIG")
@pytest.mark.parametrize("method", START_METHODS)
def test_what_environments_start_ends_with_the_program(method):
    """Also where that is killed."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from engines import make_engine
from fastvec._env_access import get_attr
from test_workers import StartsProcessEnv
engine = make_engine([StartsProcessEnv] * 2, num_workers=2, start_method={method!r})
print(*engine.call("get_attr", get_attr, "child_pid", env_ids=[0, 1]), flush=True)
sys.stdin.read()
"""
    program = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    children = [int(pid) for pid in program.stdout.readline().split()]
    assert len(children) == 2
    assert all(psutil.pid_exists(pid) for pid in children)
    program.kill()
    program.communicate()
    assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in children))
