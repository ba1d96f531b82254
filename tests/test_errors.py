"""The error tree: what each error also is, and that it survives a trip to another process."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from fastvec import errors

BUILTIN_OF = {
    errors.ConfigError: ValueError,
    errors.FactoryError: TypeError,
    errors.DuplicateEnvError: ValueError,
    errors.SpaceMismatchError: ValueError,
    errors.ActionError: ValueError,
    errors.ObservationError: ValueError,
    errors.RewardError: TypeError,
    errors.NanError: ValueError,
    errors.InfoError: TypeError,
    errors.CallError: RuntimeError,
    errors.ClosedError: RuntimeError,
    errors.BrokenError: RuntimeError,
    errors.EnvError: RuntimeError,
    errors.WorkerDiedError: ChildProcessError,
    errors.WorkerTimeoutError: TimeoutError,
    errors.SharedMemoryError: MemoryError,
}

WITH_ATTRIBUTES = [
    (errors.EnvError, {"env_index": 5, "worker": 1, "pid": 4211, "command": "step", "traceback": "Traceback ..."}),
    (errors.WorkerDiedError, {"worker": 1, "pid": 4211, "exitcode": -9}),
    (errors.WorkerTimeoutError, {"env_indices": (2, 3)}),
]


@pytest.mark.parametrize(("error", "builtin"), BUILTIN_OF.items(), ids=lambda value: value.__name__)
def test_each_error_is_caught_as_its_builtin_and_as_ours(error, builtin):
    """Code that was written for the built-in error, and code written for FastvecError, both catch it."""
    with pytest.raises(builtin, match="what happened"):
        raise error("what happened")
    assert issubclass(error, errors.FastvecError)
    assert error.__mro__.index(errors.FastvecError) < error.__mro__.index(builtin)


def test_the_public_names_are_the_tree():
    """Every class of the module is public, and no other name is."""
    assert set(errors.__all__) == {error.__name__ for error in [errors.FastvecError, *BUILTIN_OF]}
    assert errors.__all__ == sorted(errors.__all__)


def test_the_drawing_in_the_docstring_is_the_tree():
    """The tree drawn for readers names every error with the built-in one that it is."""
    drawn = dict(re.findall(r"── (\w+) \((\w+)\)", errors.__doc__))
    assert drawn == {error.__name__: builtin.__name__ for error, builtin in BUILTIN_OF.items()}


@pytest.mark.parametrize("error", [errors.FastvecError, *BUILTIN_OF], ids=lambda value: value.__name__)
def test_an_error_with_a_message_alone_survives_the_trip(error):
    """An error that is pickled or copied comes back as the same type with the same text."""
    original = error("expected this, got that")
    for twin in (pickle.loads(pickle.dumps(original)), copy.copy(original)):
        assert type(twin) is error
        assert str(twin) == "expected this, got that"
        assert twin.args == ("expected this, got that",)


@pytest.mark.parametrize(("error", "attributes"), WITH_ATTRIBUTES, ids=lambda value: getattr(value, "__name__", ""))
def test_an_error_with_attributes_survives_the_trip(error, attributes):
    """The attributes of an error, which say who failed, come back with its text."""
    original = error("it failed", **attributes)
    for twin in (pickle.loads(pickle.dumps(original)), copy.copy(original)):
        assert type(twin) is error
        assert str(twin) == "it failed"
        assert {name: getattr(twin, name) for name in attributes} == attributes


@pytest.mark.parametrize(
    ("error", "defaults"),
    [
        (errors.EnvError, {"env_index": None, "worker": None, "pid": None, "command": "", "traceback": ""}),
        (errors.WorkerDiedError, {"worker": None, "pid": None, "exitcode": None}),
        (errors.WorkerTimeoutError, {"env_indices": ()}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_attributes_that_are_not_known_have_their_defaults(error, defaults):
    """An error raised with a message alone has every attribute that its class documents."""
    assert {name: getattr(error("it failed"), name) for name in defaults} == defaults
