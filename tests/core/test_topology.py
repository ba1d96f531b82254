"""Reading machines from made-up /sys and /proc trees, and placing workers on them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastvec._core.topology import Cpu, Topology, parse_cpu_list, pin, pin_all_threads, plan_affinity, read_topology

property_test = settings(deadline=None, database=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])

#: Two nodes of two cores of two hyper-threads each, numbered as Linux does: all cores, then all their siblings.
TWO_NODES = Topology(tuple(Cpu(index, core=index % 4, node=index % 4 // 2) for index in range(8)))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Lay out a machine: files below ``sys`` and ``proc`` by path, and the affinity mask of this process."""

    def lay_out(files, mask=(0,)):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(mask), raising=False)
        return tmp_path

    return lay_out


def siblings(cpu, text):
    return {f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": text}


@st.composite
def topologies(draw):
    """Machines of up to 3 nodes of up to 4 cores of 1 or 2 threads, some of whose CPUs the mask leaves out."""
    cpus = []
    for node in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 4))):
            core = len(cpus)
            cpus += [Cpu(core + thread, core, node) for thread in range(draw(st.integers(1, 2)))]
    kept = draw(st.lists(st.sampled_from(cpus), min_size=1, unique=True))
    return Topology(tuple(sorted(kept, key=lambda cpu: cpu.index)))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0\n", [0]), ("0-3\n", [0, 1, 2, 3]), ("0-1,8,10-11\n", [0, 1, 8, 10, 11]), ("", []), ("\n", [])],
)
def test_a_list_of_the_kernel_is_spelled_out(text, cpus):
    """Single CPUs and ranges become indices; a node without CPUs has an empty list."""
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("cpus", "quota", "usable"),
    [(4, None, 4), (4, 2.0, 2), (4, 1.2, 2), (4, 0.3, 1), (4, 64.0, 4), (1, 0.01, 1)],
)
def test_usable_is_the_mask_cut_to_the_quota_rounded_up(cpus, quota, usable):
    """A quota of 1.2 CPUs keeps two busy, a larger one than the mask changes nothing, and one is always usable."""
    assert Topology(tuple(Cpu(index, index, 0) for index in range(cpus)), quota).usable == usable


def test_a_core_is_used_once_before_any_of_its_siblings():
    """With two threads a core, all cores of all nodes come before the first second thread."""
    assert [cpu.index for cpu in TWO_NODES.placement_order()] == [0, 1, 2, 3, 4, 5, 6, 7]
    adjacent = Topology(tuple(Cpu(index, core=index // 2 * 2, node=0) for index in range(6)))
    assert [cpu.index for cpu in adjacent.placement_order()] == [0, 2, 4, 1, 3, 5]


def test_neighbouring_workers_share_a_node():
    """On a machine whose nodes alternate in the numbering, node after node is filled."""
    alternating = Topology(tuple(Cpu(index, index, node=index % 2) for index in range(6)))
    assert plan_affinity(alternating, 6) == [frozenset([cpu]) for cpu in (0, 2, 4, 1, 3, 5)]


def test_workers_beyond_the_cpus_start_again_from_the_first():
    """Five workers on two CPUs take turns."""
    two = Topology((Cpu(3, 3, 0), Cpu(7, 7, 0)))
    assert plan_affinity(two, 5) == [frozenset([cpu]) for cpu in (3, 7, 3, 7, 3)]


def test_a_window_of_several_cpus_takes_whole_cores_of_one_node():
    """With two CPUs a worker, the first workers have two cores each, and no core is shared before all are used."""
    assert plan_affinity(TWO_NODES, 4, cpus_per_worker=2) == [
        frozenset(window) for window in ({0, 1}, {2, 3}, {4, 5}, {6, 7})
    ]


def test_a_window_is_never_wider_than_the_machine():
    """More threads a worker than there are CPUs leaves every worker all of them."""
    assert plan_affinity(TWO_NODES, 2, cpus_per_worker=64) == [frozenset(range(8))] * 2


def test_placement_can_begin_at_any_cpu():
    """Processes that begin at different CPUs of one host do not share them, and the order wraps around."""
    assert plan_affinity(TWO_NODES, 3, first=2) == [frozenset([2]), frozenset([3]), frozenset([4])]
    assert plan_affinity(TWO_NODES, 3, first=7 + 8) == [frozenset([7]), frozenset([0]), frozenset([1])]


@property_test
@given(topologies(), st.integers(0, 30), st.integers(1, 9), st.integers(0, 10**6))
def test_every_worker_has_a_full_window_and_all_cpus_are_used_alike(topology, num_workers, width, first):
    """Windows are as wide as asked, or all CPUs, and no CPU has two workers more than another."""
    indices = {cpu.index for cpu in topology.cpus}
    plan = plan_affinity(topology, num_workers, cpus_per_worker=width, first=first)
    assert [len(window) for window in plan] == [min(width, len(indices))] * num_workers
    assert all(window <= indices for window in plan)
    uses = [sum(index in window for window in plan) for index in indices]
    assert max(uses) - min(uses) <= 1


@property_test
@given(topologies(), st.integers(1, 12))
def test_no_two_workers_share_a_core_while_there_is_a_free_one(topology, num_workers):
    """Up to as many workers as cores, each has a core of its own."""
    core_of = {cpu.index: cpu.core for cpu in topology.cpus}
    num_workers = min(num_workers, len(set(core_of.values())))
    cores = [core_of[index] for window in plan_affinity(topology, num_workers) for index in window]
    assert len(set(cores)) == num_workers


def test_siblings_are_read_from_the_kernel(machine):
    """CPUs that the kernel lists as siblings share a core, in whichever of its two notations."""
    root = machine(
        siblings(0, "0,2\n") | siblings(2, "0,2\n") | siblings(1, "1-3\n") | siblings(3, "1-3\n"), mask=range(4)
    )
    assert [cpu.core for cpu in read_topology(root).cpus] == [0, 1, 0, 1]


def test_cores_of_two_sockets_are_told_apart(machine):
    """Both sockets number their cores from 0; the siblings keep them apart."""
    core_ids = {f"sys/devices/system/cpu/cpu{cpu}/topology/core_id": f"{cpu % 2}\n" for cpu in range(4)}
    root = machine(core_ids | {k: v for cpu in range(4) for k, v in siblings(cpu, f"{cpu}\n").items()}, mask=range(4))
    assert [cpu.core for cpu in read_topology(root).cpus] == [0, 1, 2, 3]


def test_nodes_are_read_from_the_kernel(machine):
    """Each CPU has the node whose list names it, also nodes of two digits."""
    root = machine(
        {
            "sys/devices/system/node/node0/cpulist": "0-1,4\n",
            "sys/devices/system/node/node10/cpulist": "2-3\n",
            "sys/devices/system/node/node2/cpulist": "\n",
            "sys/devices/system/node/online": "0,2,10\n",
        },
        mask=range(5),
    )
    assert [cpu.node for cpu in read_topology(root).cpus] == [0, 0, 10, 10, 0]


def test_only_cpus_of_the_mask_are_read(machine):
    """A process that is bound to some CPUs sees those, in order, and counts those."""
    root = machine({"sys/devices/system/node/node1/cpulist": "0-7\n"}, mask={6, 2})
    topology = read_topology(root)
    assert topology == Topology((Cpu(2, 2, 1), Cpu(6, 6, 1)), None)
    assert topology.usable == 2


def test_a_machine_that_tells_nothing_has_one_core_a_cpu(machine):
    """Without any of the kernel's files every CPU is a core of node 0, and there is no quota."""
    assert read_topology(machine({}, mask={0, 1})) == Topology((Cpu(0, 0, 0), Cpu(1, 1, 0)), None)


def test_an_empty_list_of_siblings_is_no_list(machine):
    """Some virtual machines have the file and nothing in it."""
    assert read_topology(machine(siblings(5, "\n"), mask={5})).cpus == (Cpu(5, 5, 0),)


V2 = {"proc/self/cgroup": "0::/jobs/train\n"}
V1 = {"proc/self/cgroup": "12:cpuset:/set\n5:cpu,cpuacct:/jobs/train\n2:memory:/jobs/train\n"}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        pytest.param({}, None, id="no cgroups"),
        pytest.param(V2, None, id="v2 without the controller"),
        pytest.param(V2 | {"sys/fs/cgroup/jobs/train/cpu.max": "max 100000\n"}, None, id="v2 unlimited"),
        pytest.param(V2 | {"sys/fs/cgroup/jobs/train/cpu.max": "150000 100000\n"}, 1.5, id="v2 own group"),
        pytest.param(V2 | {"sys/fs/cgroup/jobs/train/cpu.max": "50000 20000\n"}, 2.5, id="v2 other period"),
        pytest.param(
            V2 | {"sys/fs/cgroup/jobs/train/cpu.max": "max 100000\n", "sys/fs/cgroup/jobs/cpu.max": "300000 100000\n"},
            3.0,
            id="v2 limit of a parent",
        ),
        pytest.param(
            V2
            | {
                "sys/fs/cgroup/jobs/train/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/jobs/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/cpu.max": "800000 100000\n",
            },
            2.0,
            id="v2 tightest of nested limits",
        ),
        pytest.param(V2 | {"sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1.0, id="v2 path of the host in a container"),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "70000 100000\n"}, 0.7, id="v2 namespace root"
        ),
        pytest.param(V1, None, id="v1 without files"),
        pytest.param(
            V1
            | {
                "sys/fs/cgroup/cpu,cpuacct/jobs/train/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/jobs/train/cpu.cfs_period_us": "100000\n",
            },
            None,
            id="v1 unlimited",
        ),
        pytest.param(
            V1
            | {
                "sys/fs/cgroup/cpu,cpuacct/jobs/train/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/jobs/train/cpu.cfs_period_us": "50000\n",
            },
            5.0,
            id="v1 own group",
        ),
        pytest.param(
            V1
            | {
                "sys/fs/cgroup/cpu/jobs/train/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "900000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            1.5,
            id="v1 tightest of nested limits, under the short mount",
        ),
        pytest.param(
            V1
            | {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2.0,
            id="v1 path of the host in a container",
        ),
        pytest.param(V1 | {"sys/fs/cgroup/cpu/jobs/train/cpu.cfs_quota_us": "300000\n"}, 3.0, id="v1 default period"),
        pytest.param(
            {
                "proc/self/cgroup": "3:cpuset:/\n1:cpu:/box\n0::/\n",
                "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "120000\n",
                "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
            },
            1.2,
            id="v1 beside an empty v2",
        ),
        pytest.param(
            {"proc/self/cgroup": "3:cpuset:/box\n", "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "100000\n"},
            None,
            id="the cpuset controller is not the cpu controller",
        ),
    ],
)
def test_the_quota_is_the_tightest_limit_above_this_process(machine, files, quota):
    """Both versions of cgroups are read, from this process's own group up to the root of what is mounted."""
    assert read_topology(machine(files)).quota == quota


def test_the_quota_limits_the_usable_cpus(machine):
    """A container that sees 16 CPUs and may use 2.5 of them can keep 3 busy."""
    root = machine({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, mask=range(16))
    assert read_topology(root).usable == 3


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs CPU affinity")
def test_this_machine_is_read_as_it_is():
    """On the real machine the CPUs are those of the affinity mask, and at least one is usable."""
    mask = sorted(os.sched_getaffinity(0))
    topology = read_topology()
    assert [cpu.index for cpu in topology.cpus] == mask
    assert 1 <= topology.usable <= len(mask)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs CPU affinity")
def test_pin_binds_the_calling_process_and_no_other(forked, exit_code_of):
    """A child that pins itself runs on that CPU alone; its parent's mask stays."""
    mask = os.sched_getaffinity(0)
    last = max(mask)

    def child():
        pin(frozenset([last]))
        assert os.sched_getaffinity(0) == {last}

    assert exit_code_of(forked(child)) == 0
    assert os.sched_getaffinity(0) == mask


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs CPU affinity")
def test_pin_refuses_a_cpu_that_is_not_there(forked, exit_code_of):
    """Binding to a CPU beyond the machine's is the system's OSError, and changes nothing."""

    def child():
        mask = os.sched_getaffinity(0)
        with pytest.raises(OSError, match="Invalid argument"):
            pin(frozenset([(os.cpu_count() or 1) + 500]))
        assert os.sched_getaffinity(0) == mask

    assert exit_code_of(forked(child)) == 0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_pinning_all_threads_binds_those_that_run_already(forked, exit_code_of):
    """Threads that were there before are bound too, and the mask that is returned undoes it."""

    def masks():
        return {frozenset(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")}

    def child():
        mask = frozenset(os.sched_getaffinity(0))
        last = frozenset([max(mask)])
        done = threading.Event()
        threads = [threading.Thread(target=done.wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        before = pin_all_threads(last)
        assert set(map(frozenset, before.values())) == {mask}
        assert masks() == {last}
        assert set(map(frozenset, pin_all_threads(before).values())) == {last}
        assert masks() == {mask}
        done.set()
        for thread in threads:
            thread.join()

    assert exit_code_of(forked(child)) == 0
