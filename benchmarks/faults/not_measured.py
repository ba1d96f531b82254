"""Faults that one Linux machine without a GPU does not show, or that only a stopwatch would."""

from faults.case import unmeasured

unmeasured(
    "C8",
    "each worker takes memory of the GPU",
    "needs a GPU",
    "tests/test_workers.py::test_variables_are_set_before_the_imports_of_environments",
)
unmeasured(
    "D6",
    "CUDA in a forked worker",
    "needs a GPU",
    "tests/test_workers.py::test_fork_is_refused_once_cuda_is_initialised",
)
unmeasured(
    "D8",
    "macOS: fork without exec",
    "needs macOS",
    "tests/core/test_config.py::test_the_default_start_method_is_never_fork",
)
unmeasured(
    "D11", "Windows: waiting for more than 60 processes", "needs Windows", not_yet="nothing is tested on Windows"
)
unmeasured(
    "E1",
    "parallel is slower than serial where steps are cheap",
    "a matter of speed: `benchmarks/suite.py`",
    not_yet="a suggestion of the setting for this machine",
)
unmeasured(
    "E2",
    "many cores, no gain",
    "a matter of speed: `benchmarks/suite.py`",
    not_yet="a report of where the time of a step goes",
)
unmeasured(
    "E4",
    "everyone waits for the slowest environment",
    "a matter of speed. `recv(min_envs=k)` of `SharedMemVectorEnv` gives the first that are ready",
    "tests/test_partial_steps.py::test_who_is_ready_does_not_wait_for_who_is_not",
    not_yet="a report of who is waited for",
)
unmeasured(
    "E6",
    "running in series unknowingly",
    "a matter of what one reads",
    "tests/test_sb3.py::test_the_swap_of_the_readme_trains",
    not_yet="a command that shows which class runs and how busy the CPUs are",
)
unmeasured(
    "E7",
    "a second round trip at each step, for action masks",
    'a matter of speed. `with_step=["action_masks"]` has them come with the step',
    "tests/test_with_step.py::test_values_are_those_of_a_call_after_every_step",
)
unmeasured(
    "E9",
    "slow starts",
    "a matter of speed: `benchmarks/suite.py --parts start`",
    "tests/core/test_forkserver.py::test_preloaded_modules_are_imported_once_and_in_the_server",
)
unmeasured(
    "E12",
    "several NUMA nodes",
    "needs two nodes",
    "tests/core/test_topology.py::test_neighbouring_workers_share_a_node",
    "tests/core/test_topology.py::test_nodes_are_read_from_the_kernel",
)
unmeasured("I2", "OpenGL in forked or in many workers", "needs GL", not_yet="starting workers one after the other")
unmeasured("J4", "macOS: a pipe's end that nobody sees", "needs macOS", "tests/test_fault_matrix.py::test_a_fault")
unmeasured("K6", "how many workers?", "a matter of speed", not_yet="a command that measures and says why")
unmeasured(
    "K7",
    "CPUs of a cluster's job",
    "see E11",
    "tests/core/test_topology.py::test_usable_is_the_mask_cut_to_the_quota_rounded_up",
    not_yet="a line at the start that says how many CPUs are usable and why",
)
