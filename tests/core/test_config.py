"""Options: what is accepted, what it means, and what the message says where it is not."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastvec._core.config import EngineConfig
from fastvec._core.topology import read_topology
from fastvec.errors import ConfigError

property_test = settings(deadline=None, database=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs CPU affinity")
needs_fork = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")


def resolve(num_envs=4, **options):
    return EngineConfig.resolve(num_envs, **options)


@property_test
@given(num_envs=st.integers(1, 500), num_workers=st.integers(1, 500))
def test_slices_are_contiguous_and_differ_by_at_most_one(num_envs, num_workers):
    """Each environment belongs to one worker, workers have neighbours, and the first ones have the extra ones."""
    config = EngineConfig(num_envs=num_envs, num_workers=min(num_envs, num_workers), start_method="spawn")
    slices = config.slices()
    assert len(slices) == config.num_workers
    assert [env for ids in slices for env in ids] == list(range(num_envs))
    sizes = [len(ids) for ids in slices]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert all(ids.step == 1 for ids in slices)


@property_test
@given(num_envs=st.integers(1, 300), in_series=st.integers(1, 300))
def test_in_series_is_the_most_that_a_worker_has(num_envs, in_series):
    """Workers are as few as can be with at most ``in_series`` environments each."""
    config = resolve(num_envs, in_series=in_series)
    assert config.num_workers == math.ceil(num_envs / in_series)
    assert max(map(len, config.slices())) <= in_series


def test_defaults_are_one_worker_a_usable_cpu():
    """Without options there are as many workers as CPUs to keep busy, never more than environments."""
    assert resolve(1000).num_workers == read_topology().usable
    assert resolve(1).num_workers == 1


def test_more_workers_than_environments_are_not_started():
    """Asking for more workers than environments gives each environment its own."""
    assert resolve(3, num_workers=8).num_workers == 3


def test_no_workers_is_a_choice():
    """``num_workers=0`` keeps the environments in this process."""
    config = resolve(3, num_workers=0)
    assert config.num_workers == 0
    assert config.worker_env == ()


def test_in_series_and_an_agreeing_number_of_workers_can_both_be_given():
    """Saying the same twice is no contradiction."""
    assert resolve(8, in_series=3, num_workers=3).num_workers == 3


def test_numpy_integers_are_integers():
    """Counts that come out of NumPy are accepted and become plain integers."""
    config = resolve(8, num_workers=np.int64(2), threads_per_worker=np.int32(2))
    assert type(config.num_workers) is int
    assert config.num_workers == 2
    assert resolve(8, in_series=np.uint8(4)).num_workers == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
        ({"num_workers": 2.0}, "num_workers must be an integer, got 2.0 of type float"),
        ({"num_workers": True}, "num_workers must be an integer, got True of type bool"),
        ({"num_workers": "2"}, "num_workers must be an integer, got '2' of type str"),
        ({"in_series": 0}, "in_series must be at least 1, got 0"),
        ({"in_series": 1.5}, "in_series must be an integer, got 1.5 of type float"),
        (
            {"in_series": 2, "num_workers": 4},
            "in_series=2 puts 4 environments on 2 workers, but num_workers=4 was given too: leave one of the two out",
        ),
        ({"threads_per_worker": 0}, "threads_per_worker must be at least 1, got 0"),
        ({"start_timeout": 0}, "start_timeout must be a positive number of seconds or None, got 0"),
        ({"reset_timeout": -1.5}, "reset_timeout must be a positive number of seconds or None, got -1.5"),
        ({"step_timeout": "3"}, "step_timeout must be a positive number of seconds or None, got '3'"),
        ({"step_timeout": True}, "step_timeout must be a positive number of seconds or None, got True"),
        ({"close_timeout": math.nan}, "close_timeout must be a positive number of seconds or None, got nan"),
        ({"close_timeout": None}, "close_timeout must be a number of seconds, got None: closing always ends"),
        ({"unsafe_casts": "no"}, "unsafe_casts must be True or False, got 'no'"),
        ({"check_nan": 1}, "check_nan must be True or False, got 1"),
        ({"pin_learner": "yes"}, "pin_learner must be True or False, got 'yes'"),
        (
            {"reset_options": lambda env_id: {}},
            "reset_options is called as reset_options(env_id, number), got a function of (env_id)",
        ),
        ({"worker_env": lambda: {}}, "worker_env is called as worker_env(worker), got a function of ()"),
        ({"preload": "numpy"}, "preload must be a sequence of module names, got 'numpy'"),
        ({"start_method": "threads"}, "cannot find context for 'threads': expected one of 'fork', 'spawn'"),
        ({"context": "threads"}, "cannot find context for 'threads': expected one of 'fork', 'spawn'"),
        (
            {"start_method": "spawn", "context": "fork"},
            "start_method='spawn' and context='fork' are two names of one option: give one of them",
        ),
        ({"worker_env": 5}, "worker_env must give a mapping of strings to strings, got 5 for worker 0"),
        ({"worker_env": {"A": 1}}, "worker_env must give a mapping of strings to strings, got {'A': 1} for worker 0"),
        (
            {"worker_env": lambda worker: {} if worker == 0 else None},
            "worker_env must give a mapping of strings to strings, got None for worker 1",
        ),
        ({"pin_learner": True}, "pin_learner=True needs cpu_affinity: without it the workers may run on every CPU"),
        ({"cpu_affinity": "all"}, "cpu_affinity must be 'auto', a list of CPUs or a list of sets, got 'all'"),
        ({"cpu_affinity": []}, "cpu_affinity is empty: expected CPUs, or None to leave placement to the system"),
        (
            {"cpu_affinity": [0, {1}]},
            "cpu_affinity must be 'auto', a list of CPUs or a list of sets of CPUs, got [0, {1}]",
        ),
        ({"cpu_affinity": [True]}, "cpu_affinity must be 'auto', a list of CPUs or a list of sets of CPUs, got [True]"),
        ({"cpu_affinity": ["0"]}, "cpu_affinity must be 'auto', a list of CPUs or a list of sets of CPUs, got ['0']"),
        ({"cpu_affinity": [{0}]}, "cpu_affinity must hold one set of CPUs a worker: expected 2 sets, got 1"),
        ({"cpu_affinity": [{0}, set()]}, "cpu_affinity gives worker 1 the CPUs [], but this process may use ["),
        ({"cpu_affinity": [100_000]}, "cpu_affinity gives worker 0 the CPUs [100000], but this process may use ["),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_wrong_option_says_what_was_expected_and_what_was_given(options, text):
    """Every wrong option, or combination of options, is a ConfigError before anything has been started."""
    with pytest.raises(ConfigError) as caught:
        resolve(4, **{"in_series": 2, **options} if "num_workers" not in options else options)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"cpu_affinity": 0},
        {"cpu_affinity": [{"first"}]},
        {"cpu_affinity": [[0.5]]},
        {"preload": None},
        {"preload": [3]},
    ],
    ids=repr,
)
def test_an_option_of_a_wrong_type_is_a_config_error(options):
    """What is no collection of CPUs, or no sequence of module names, is refused like any other wrong option."""
    with pytest.raises(ConfigError):
        resolve(4, num_workers=1, **options)


@pytest.mark.parametrize("name", ["start_timeout", "reset_timeout", "step_timeout", "close_timeout"])
def test_an_endless_timeout_is_refused_or_means_none(name):
    """An infinite number of seconds either is a ConfigError or is turned into what a wait can use."""
    try:
        seconds = getattr(resolve(4, **{name: math.inf}), name)
    except ConfigError:
        return
    assert seconds is None or seconds < threading.TIMEOUT_MAX


def test_an_empty_batch_is_refused():
    """Without factories there is nothing to make."""
    with pytest.raises(ConfigError, match="env_fns is empty: expected at least one environment factory"):
        resolve(0)


def test_the_default_start_method_is_never_fork():
    """Unless asked otherwise, workers come from a fork server where there is one, else from new interpreters."""
    available = multiprocessing.get_all_start_methods()
    assert resolve().start_method == ("forkserver" if "forkserver" in available else "spawn")


@pytest.mark.parametrize("options", [{"start_method": "spawn"}, {"context": "spawn"}], ids=lambda o: next(iter(o)))
def test_context_is_another_name_of_start_method(options):
    """Either name chooses the method, and both may agree."""
    assert resolve(**options).start_method == "spawn"
    assert resolve(start_method="spawn", context="spawn").start_method == "spawn"


@needs_fork
def test_fork_beside_other_threads_warns_and_names_them():
    """Forking a program with threads can leave locks held for ever, so the threads are named."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="replay-writer")
    thread.start()
    try:
        with pytest.warns(RuntimeWarning, match=r"while \d+ other Python threads are running \(.*replay-writer.*\)"):
            assert resolve(start_method="fork", num_workers=1).start_method == "fork"
    finally:
        done.set()
        thread.join()


@needs_fork
def test_fork_alone_does_not_warn():
    """A program with one thread may fork, and without workers nobody forks; neither says a word."""
    code = (
        "import threading; from fastvec._core.config import EngineConfig; "
        "EngineConfig.resolve(4, start_method='fork', num_workers=2); "
        "event = threading.Event(); thread = threading.Thread(target=event.wait); thread.start(); "
        "EngineConfig.resolve(4, start_method='fork', num_workers=0); event.set(); thread.join()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def test_worker_env_is_copied_for_every_worker():
    """One mapping goes to all workers, and changing it afterwards changes none of them."""
    variables = {"A": "1"}
    config = resolve(4, num_workers=2, worker_env=variables)
    variables["A"] = "2"
    assert config.worker_env == ({"A": "1"}, {"A": "1"})
    assert config.worker_env_is_shared


def test_worker_env_can_depend_on_the_worker():
    """A function is asked once for each worker's index."""
    config = resolve(4, num_workers=2, worker_env=lambda worker: {"RANK": str(worker)})
    assert config.worker_env == ({"RANK": "0"}, {"RANK": "1"})
    assert not config.worker_env_is_shared


def test_worker_env_does_not_appear_in_the_representation():
    """Variables may hold secrets, which do not belong in logs."""
    assert "hush" not in repr(resolve(worker_env={"TOKEN": "hush"}))


@needs_affinity
def test_placement_is_left_to_the_system_unless_asked_for():
    """Without ``cpu_affinity`` no worker and no learner is bound."""
    config = resolve()
    assert (config.cpus, config.learner_cpus) == (None, None)


@needs_affinity
def test_auto_affinity_gives_every_worker_cpus_that_it_may_use():
    """Each worker has one CPU of this process's mask, and no CPU has two workers more than another."""
    mask = os.sched_getaffinity(0)
    config = resolve(16, num_workers=5, cpu_affinity="auto")
    assert [len(cpus) for cpus in config.cpus] == [1] * 5
    uses = [sum(cpu in cpus for cpus in config.cpus) for cpu in mask]
    assert sum(uses) == 5
    assert max(uses) - min(uses) <= 1


@needs_affinity
def test_a_list_of_cpus_is_dealt_out_in_turn():
    """Three workers on a list of CPUs take them one after another and begin again."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    config = resolve(4, num_workers=3, cpu_affinity=cpus)
    assert config.cpus == tuple(frozenset([cpus[worker % len(cpus)]]) for worker in range(3))


@needs_affinity
def test_a_list_of_sets_gives_one_to_each_worker():
    """Sets are taken as they are; NumPy's integers in them become plain ones."""
    mask = frozenset(os.sched_getaffinity(0))
    first = min(mask)
    config = resolve(4, num_workers=2, cpu_affinity=[mask, [np.int64(first)]])
    assert config.cpus == (mask, frozenset([first]))
    assert {type(cpu) for cpus in config.cpus for cpu in cpus} == {int}


@needs_affinity
def test_the_learner_has_the_cpus_that_no_worker_has():
    """With one worker on one CPU the learner gets the others, or that one too where there is no other."""
    mask = frozenset(os.sched_getaffinity(0))
    first = min(mask)
    config = resolve(1, num_workers=1, cpu_affinity=[first], pin_learner=True)
    assert config.learner_cpus == ((mask - {first}) or mask)
    everywhere = resolve(1, num_workers=1, cpu_affinity=[mask], pin_learner=True)
    assert everywhere.learner_cpus == mask


@needs_affinity
def test_affinity_without_workers_changes_nothing():
    """With the environments in this process there is nobody to place."""
    config = resolve(4, num_workers=0, cpu_affinity="auto", pin_learner=True)
    assert (config.cpus, config.learner_cpus) == (None, None)


def test_a_config_keeps_what_was_given_and_cannot_be_changed():
    """Options that need no thought come through as they are, in a frozen value."""
    config = resolve(
        4,
        start_timeout=None,
        reset_timeout=2,
        step_timeout=0.5,
        close_timeout=1.0,
        threads_per_worker=None,
        preload=["json", "csv"],
        unsafe_casts=True,
    )
    assert (config.start_timeout, config.reset_timeout, config.step_timeout, config.close_timeout) == (
        None,
        2,
        0.5,
        1.0,
    )
    assert config.threads_per_worker is None
    assert config.preload == ("json", "csv")
    assert config.unsafe_casts
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_envs = 5
