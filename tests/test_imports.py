"""The order of the modules: who may import whom, and what a mere import loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fastvec

ROOT = Path(fastvec.__file__).parent
MAX_LINES = 340

#: A module imports from its own floor or from one below, never from one above.
FLOORS = [
    # no process, no handle
    "_core errors _core.topology _core.options _core.checks _core.start_method _core.placement _core.config "
    "_core.structure _core.layout _core.infos _core.observations _core.actions _core.nans _core.reset_options",
    # one thing of the operating system each, and what is said over it
    "_core.channel _core.shm _core.sharing _core.sync _core.lineage _core.stacks _core.pickles _core.failures "
    "_core.output _core.bulk _core.protocol",
    # inside one process, or one process
    "_core.building _core.moving _core.returns _core.riders _core.spares _core.roster _core.surroundings "
    "_core.runner _core.partial_runner _core.dividing _core.serving _core.worker _core.factories _core.launch "
    "_core.forkserver",
    # the parent
    "_core.handle _core.replies _core.restarts _core.recycling _core.starter _core.leases _core.pool _core.results "
    "_core.reading _core.state _core.engine _core.crew _core.succession _core.partial_steps _core.processes "
    "_core.serial _core.lanes _core.joined _core.splits _core.engines",
    # one module a framework
    "_hand_over _spaces _splits _env_access _sb3_adapter _baselines_adapter _seeding _vector_adapter _vector_infos "
    "_vector_batches _vector_calls _torch_threads _sb3_calls _sb3_render sb3 _sb3_pipelined "
    "gymnasium baselines _make_vec",
    # tools, and the front door
    "testing stats measure tune doctor cli __main__ __init__",
]
FLOOR_OF = {
    "fastvec" if name == "__init__" else f"fastvec.{name}": floor
    for floor, names in enumerate(FLOORS)
    for name in names.split()
}
ENGINE_MAY_IMPORT = {"numpy", "cloudpickle", "threadpoolctl", *sys.stdlib_module_names}
FRAMEWORKS = {"gymnasium", "gym", "stable_baselines3", "torch", "baselines"}


def module_name(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def is_type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def walk(node, *, lazy):
    """All nodes, with ``lazy`` also those in functions and those for type checkers only."""
    yield node
    for child in ast.iter_child_nodes(node):
        if lazy or not (isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or is_type_checking(child)):
            yield from walk(child, lazy=lazy)


def imports(name, *, lazy):
    """The modules that a module imports; of ours with their full names, of others the top-level package."""
    found = set()
    for node in walk(ast.parse(SOURCES[name].read_text()), lazy=lazy):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import: write the full name"
            for alias in node.names:
                member = f"{node.module}.{alias.name}"
                found.add(member if member in SOURCES else node.module)
    return {module if module.partition(".")[0] == "fastvec" else module.partition(".")[0] for module in found}


def ours(modules):
    return {module for module in modules if module.partition(".")[0] == "fastvec"}


def test_a_module_imports_from_no_floor_above():
    """Whatever a module imports, at its top or in a function, stands on its own floor or below."""
    assert set(SOURCES) <= set(FLOOR_OF), "a module has no floor: give it one in FLOORS"
    upwards = {
        (name, other)
        for name in SOURCES
        for other in ours(imports(name, lazy=True))
        if FLOOR_OF[other] > FLOOR_OF[name]
    }
    assert upwards == set()


def test_modules_do_not_import_each_other_in_a_circle():
    """The modules can be put in an order in which each imports only earlier ones."""
    graph = {name: ours(imports(name, lazy=False)) - {name} for name in SOURCES}
    assert set(TopologicalSorter(graph).static_order()) == set(SOURCES)


def test_the_engine_needs_nothing_but_numpy_and_the_standard_library():
    """A module of the engine names no framework, and imports no package beyond what the engine is built on."""
    core = [name for name in SOURCES if name.startswith("fastvec._core")]
    foreign = {
        name: modules - ours(modules) - ENGINE_MAY_IMPORT for name in core for modules in [imports(name, lazy=True)]
    }
    assert {name: modules for name, modules in foreign.items() if modules} == {}


def test_a_module_stays_readable_in_one_sitting():
    """No module grows beyond the limit at which it has more than one idea."""
    lines = {name: path.read_text().count("\n") for name, path in SOURCES.items()}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def loaded_by(statement):
    """The modules that a fresh interpreter has after a statement."""
    code = f"{statement}; import sys; print(*sorted(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_importing_the_package_loads_no_framework():
    """``import fastvec`` costs no framework, not even NumPy."""
    modules = loaded_by("import fastvec")
    assert "fastvec" in modules
    assert modules & (FRAMEWORKS | {"numpy", "multiprocessing"}) == set()


def test_importing_the_worker_loads_no_framework():
    """What every worker process imports costs NumPy and no framework."""
    modules = loaded_by("import fastvec._core.worker, fastvec._core.forkserver")
    assert "numpy" in modules
    assert modules & FRAMEWORKS == set()


def test_importing_what_workers_know_of_gymnasium_does_not_load_torch():
    """The face's side in a worker costs Gymnasium, not Stable-Baselines3 and torch."""
    modules = loaded_by("import fastvec._spaces, fastvec._env_access, fastvec._sb3_adapter")
    assert "gymnasium" in modules
    assert modules & {"stable_baselines3", "torch"} == set()


def test_public_names_are_listed_and_unknown_ones_refused():
    """``dir()`` shows the public names, and a wrong one is an AttributeError that repeats it."""
    assert dir(fastvec) == sorted(fastvec.__all__)
    assert fastvec.errors.FastvecError.__module__ == "fastvec.errors"
    with pytest.raises(AttributeError, match="'fastvec' has no attribute 'SharedMemoryVecEnv'"):
        _ = fastvec.SharedMemoryVecEnv
