"""Factories: recognised, pickled, blamed by name where they cannot be, and read for what they import."""

from __future__ import annotations

import collections
import functools
import json
import pickle
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

from fastvec._core.factories import check_factories, modules_in, pickle_payload, strings_in
from fastvec._core.protocol import WorkerPayload
from fastvec.errors import FactoryError


def pickled(factories, adapter=None):
    return pickle_payload(WorkerPayload(factories, adapter, None))[0]


class Env:
    """An environment, as far as factories are concerned."""

    def __init__(self, name="", **options):
        self.name, self.options = name, options


def make_env():
    """A factory that a worker can import."""
    return Env("made")


class Unpicklable:
    """Refuses to be pickled, and says so."""

    def __reduce__(self):
        raise TypeError("a handle is no data")


class Maker:
    """A factory with state."""

    def __init__(self, state):
        self.state = state

    def __call__(self):
        return Env(options=self.state)


HANDLE = Unpicklable()


def late_bound(count):
    return [lambda: Env(str(index)) for index in range(count)]  # noqa: B023 - the very mistake


def test_any_iterable_of_functions_is_a_list_of_factories():
    """Tuples, generators, classes, partial functions and callable objects all serve, in their order."""
    factories = [make_env, Env, functools.partial(Env, "x"), Maker(1), lambda: Env()]
    assert check_factories(tuple(factories)) == factories
    assert check_factories(factory for factory in factories) == factories
    assert check_factories([]) == []


@pytest.mark.parametrize(
    ("env_fns", "text"),
    [
        (
            make_env,
            "one an environment (`[make_env] * 8`), got <function make_env",
        ),
        (
            Env,
            "one an environment (`[make_env] * 8`), got <class",
        ),
        (4, "one an environment (`[make_env] * 8`), got 4"),
        (
            [make_env, Env()],
            "env_fns[1] must be a function that makes an environment, got a Env: each worker makes its",
        ),
        ([None], "env_fns[0] must be a function that makes an environment, got a NoneType"),
        ("CartPole-v1", "env_fns[0] must be a function that makes an environment, got a str"),
    ],
    ids=["function", "class", "number", "environment", "nothing", "text"],
)
def test_what_is_no_list_of_factories_is_refused(env_fns, text):
    """The message says which entry is no factory, and what to pass instead."""
    with pytest.raises(FactoryError) as caught:
        check_factories(env_fns)
    assert text in str(caught.value)


def test_functions_that_see_the_loops_last_value_are_warned_of():
    """Factories made in a loop all make the last environment; the warning names the variable and the remedy."""
    with pytest.warns(UserWarning, match=r"all 4 environment factories see index = 3: .*`lambda index=index: ...`"):
        check_factories(late_bound(4))


def bound_by_a_default(count):
    return [lambda index=index: Env(str(index)) for index in range(count)]


def made_by_a_function(count):
    def make(index):
        return lambda: Env(str(index))

    return [make(index) for index in range(count)]


def sharing_an_unrelated_number(count):
    horizon = 100
    return [lambda: Env(str(horizon)) for _ in range(count)]


@pytest.mark.parametrize(
    "env_fns",
    [
        bound_by_a_default(3),
        made_by_a_function(3),
        sharing_an_unrelated_number(3),
        late_bound(1),
        late_bound(3)[:1] * 3,
        [functools.partial(Env, str(index)) for index in range(3)],
        [make_env] * 3,
        [*late_bound(2), make_env],
    ],
    ids=["default", "function", "constant", "one", "repeated", "partial", "global", "mixed"],
)
def test_functions_that_do_what_they_seem_to_do_are_not_warned_of(env_fns):
    """Ways of making factories that bind what they use, or share it on purpose, are taken in silence."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_factories(env_fns) == env_fns


def test_factories_and_adapter_come_back_from_their_pickle():
    """Functions by name, closures by value and callables with state make what they made before."""
    name = "from a closure"
    factories = [make_env, lambda: Env(name), functools.partial(Env, "partial"), Maker({"a": np.arange(3)})]
    back, adapter, _ = pickle.loads(pickled(factories, {"adapter": 1}))
    assert adapter == {"adapter": 1}
    assert back[0] is make_env
    assert [factory().name for factory in back[1:3]] == ["from a closure", "partial"]
    assert back[3]().options["options"]["a"].tolist() == [0, 1, 2]


def test_what_is_defined_in_the_program_itself_travels_by_value():
    """A factory of a script's ``__main__`` is unpickled where there is no such script."""
    script = (
        "import sys\n"
        "from fastvec._core.factories import pickle_payload\n"
        "from fastvec._core.protocol import WorkerPayload\n"
        "class Env:\n    depth = 7\n"
        "def make():\n    return Env()\n"
        "sys.stdout.write(pickle_payload(WorkerPayload([make, Env], None, None))[0].hex())\n"
    )
    process = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=120)
    data = bytes.fromhex(process.stdout)
    assert "__main__" not in modules_in(data)
    (make, env_class), *_ = pickle.loads(data)
    assert make().depth == 7
    assert env_class().depth == 7


def guarded():
    lock = threading.Lock()
    return lambda: Env(str(lock))


def nested_in_a_closure():
    settings = {"size": 3, "log": {"handle": HANDLE}}
    return lambda: Env(str(settings))


CULPRITS = [
    (guarded(), "the variable 'lock' of env_fns[1], a lock,"),
    (nested_in_a_closure(), "the variable 'handle' of log, a Unpicklable,"),
    (functools.partial(Env, "x", handle=HANDLE), "the variable 'handle' of env_fns[1], a Unpicklable,"),
    (functools.partial(Env, HANDLE), "the variable 'args[0]' of env_fns[1], a Unpicklable,"),
    (Maker([1, HANDLE]), "the variable '[1]' of state, a Unpicklable,"),
]
ids_of_culprits = ["closure", "nested", "keyword", "argument", "attribute"]


@pytest.mark.parametrize(("factory", "text"), CULPRITS, ids=ids_of_culprits)
def test_the_variable_that_cannot_be_pickled_is_named(factory, text):
    """The error tells the factory, the innermost variable to blame, and what to do."""
    with pytest.raises(FactoryError) as caught:
        pickled([make_env, factory], None)
    assert "env_fns[1] cannot be sent to a worker process: " in str(caught.value)
    assert text in str(caught.value)
    assert "Make that object inside the factory, or use start_method='fork'" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_the_blame_reads_as_a_sentence():
    """No quotes stand around the phrase that names the variable."""
    with pytest.raises(FactoryError, match=r"worker process: the variable 'lock' of env_fns\[0\], a lock, cannot"):
        pickled([guarded()], None)


def test_a_factory_that_is_to_blame_as_a_whole_is_shown():
    """Where no variable can be named, the factory itself is."""

    class Stubborn:
        def __call__(self):
            return None

        def __reduce__(self):
            raise TypeError("not me")

        def __repr__(self):
            return "<a stubborn factory>"

    with pytest.raises(FactoryError, match=r"env_fns\[0\] .*: <a stubborn factory> cannot be pickled \(not me\)"):
        pickled([Stubborn()], None)


def test_an_adapter_that_cannot_be_pickled_is_not_blamed_on_a_factory():
    """When all factories can be pickled, the error is the one of pickling."""
    with pytest.raises(TypeError, match="a handle is no data") as caught:
        pickled([make_env], HANDLE)
    assert not isinstance(caught.value, FactoryError)


def test_modules_behind_references_are_found_in_order():
    """Classes and functions by name bring their modules, each once; builtins are no modules to import."""
    data = pickled([make_env, functools.partial(collections.OrderedDict, a=[1, 2]), make_env, len], None)
    assert modules_in(data) == [__name__, "functools", "collections"]


def test_modules_used_by_a_function_that_travels_by_value_are_found():
    """What a lambda refers to, a module among its globals, is imported with it."""
    data = pickled([lambda: json.dumps(collections.Counter())], None)
    assert {"json", "collections"} <= set(modules_in(data))
    assert "__main__" not in modules_in(data)


def test_modules_are_found_in_large_pickles():
    """Hundreds of factories, with names that are written once and referred to afterwards."""
    factories = [functools.partial(Env, f"{index:0300}", fractions=index) for index in range(700)]
    data = pickled([*factories, functools.partial(json.loads, "1")], None)
    assert len(data) > 100_000
    assert modules_in(data) == ["functools", __name__, "json"]


def test_words_that_are_no_modules_are_not_taken_for_some():
    """Text in a factory's arguments is no reference to a module of that name."""
    data = pickled([functools.partial(Env, "json", "csv", threading="threading")], None)
    assert modules_in(data) == ["functools", __name__]


def test_every_text_is_found():
    """Ids of environments are among the strings of a pickle, wherever in the factory they stand."""
    game = "CartPole-v1"
    data = pickled([functools.partial(Env, "Pendulum-v1", mode=["rgb_array"]), lambda: Env(game)], None)
    assert {"Pendulum-v1", "rgb_array", "CartPole-v1"} <= strings_in(data)
