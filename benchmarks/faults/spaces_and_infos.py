"""Spaces, actions, infos and images (G, H, I)."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces import GraphInstance

from faults.case import Outcome, attempt, case, name_of, told, verdict
from faults.envs import Returning, Telling, TinyEnv
from faults.libraries import Library


def same(given: Any, wanted: Any) -> bool:
    """Equal in values; arrays element by element."""
    if isinstance(wanted, GraphInstance):
        return isinstance(given, GraphInstance) and np.array_equal(given.nodes, wanted.nodes)
    if isinstance(wanted, (tuple, str, frozenset)):
        return isinstance(given, type(wanted)) and given == wanted
    return bool(np.array_equal(given, wanted))


@case(
    "G1",
    "Dict and Tuple observations: structure and order of keys",
    "tests/test_sb3.py::test_every_space_of_dummys_equals_dummys",
    "tests/test_gymnasium.py::test_every_space_equals_syncs",
)
def structured_observations(library: Library) -> Outcome:
    members: list[tuple[str, Space[Any]]] = [("z", spaces.Box(0, 9, (2,), np.float32)), ("a", spaces.Discrete(5))]
    value: dict[str, Any] = {"a": 3, "z": np.ones(2, np.float32)}  # in another order
    if not library.sb3:
        members.append(("t", spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (1,), np.float32)))))
        value["t"] = (2, np.zeros(1, np.float32))
    env_fns = [partial(Returning, spaces.Dict(members), [value])] * 3
    obs, serial = library.make(env_fns, "fork").reset(), library.serial(env_fns).reset()
    keys = list(obs) == [key for key, _ in members] and type(obs) is dict
    equal = repr(dict(obs)) == repr({key: serial[key] for key in obs})
    return verdict(
        (f"a {type(obs).__name__}, keys {'as the space has them' if keys else words_of(obs)}", keys),
        (f"{'equal to' if equal else 'unlike'} the serial class", equal),
    )


def words_of(obs: Any) -> str:
    return ", ".join(map(str, obs))


class Sets(Space[Any]):
    """A space of one's own."""

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return frozenset({1})

    def contains(self, x: Any) -> bool:
        return isinstance(x, frozenset)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sets)


@case(
    "G2",
    "spaces without a fixed size, and one's own",
    "tests/test_engine.py::test_every_space_and_info_is_the_same_in_workers",
    "tests/test_gymnasium.py::test_every_space_equals_syncs",
)
def other_spaces(library: Library) -> Outcome:
    def graph(i: int) -> GraphInstance:
        return GraphInstance(nodes=np.full((i + 1, 2), 0.5, np.float32), edges=None, edge_links=None)

    kinds: dict[str, tuple[Space[Any], Any]] = {
        "Text": (spaces.Text(9), lambda i: "ab" * (i + 1)),
        "Sequence": (spaces.Sequence(spaces.Discrete(9)), lambda i: tuple(range(i + 1))),
        "Graph": (spaces.Graph(spaces.Box(0, 1, (2,), np.float32), None), graph),
        "custom": (Sets(), lambda i: frozenset({i})),
    }
    works, fails = [], []
    for name, (space, value) in kinds.items():
        env_fns = [partial(Returning, space, [value(i)], i) for i in range(3)]
        obs, error = attempt(lambda env_fns=env_fns: library.make(env_fns, "fork").reset())
        good = error is None and all(same(obs[i], value(i)) for i in range(3))
        if good:
            works.append(name)
        else:
            fails.append(f"{name} {name_of(error) if error else f'becomes {obs[1]!r}'}")
    return Outcome("; ".join([f"{', '.join(works)} as returned"] * bool(works) + fails), not fails)


@case(
    "G4",
    "a Dict in a Dict",
    "tests/test_engine.py::test_every_space_and_info_is_the_same_in_workers",
    "tests/test_gymnasium.py::test_every_space_equals_syncs",
)
def nested_dict(library: Library) -> Outcome:
    space = spaces.Dict(inner=spaces.Dict(x=spaces.Discrete(5)), y=spaces.Discrete(5))
    vec = library.make([partial(Returning, space, [{"inner": {"x": i}, "y": i}]) for i in range(3)], "fork")
    obs, error = attempt(vec.reset)
    if error:
        return Outcome(name_of(error), False)
    inner = obs["inner"]
    right = isinstance(inner, dict) and np.array_equal(inner["x"], [0, 1, 2])
    return Outcome("nested arrays" if right else f"an array of {inner.dtype}s", right)


@case(
    "G5",
    "environments with different spaces",
    "tests/test_engine.py::test_spaces_must_agree",
    "tests/test_gymnasium.py::test_spaces_may_differ_as_far_as_the_mode_says",
)
def different_spaces(library: Library) -> Outcome:
    env_fns = [
        partial(Returning, spaces.Box(0, 1, (2,), dtype), [np.ones(2, dtype)]) for dtype in (np.float32, np.float64)
    ]
    obs, error = attempt(lambda: library.make(env_fns, "fork").reset())
    if error is None:
        return Outcome(f"accepted, returns {obs.dtype}", False)
    named = "env 1" in told(error) and "float32" in told(error) and "float64" in told(error)
    return Outcome(f"{name_of(error)}{', names env and both' if named else ', does not say where'}", named)


@case(
    "G6",
    "batches of actions of a wrong shape",
    "tests/core/test_actions.py::test_a_wrong_shape_is_refused_and_never_broadcast",
    "tests/test_engine.py::test_actions_reach_their_environments_with_their_types",
)
def action_shapes(library: Library) -> Outcome:
    parts = []
    for what, actions in {"(3, 1)": np.ones((3, 1), np.int64), "one for 3": np.int64(1)}.items():
        vec = library.make([partial(TinyEnv, i) for i in range(3)], "fork")
        vec.reset()
        _, error = attempt(vec.step, actions)
        said = "(3,)" in str(error) or "3 actions" in str(error)
        parts.append((f"{what}: {name_of(error) if error else 'passed on'}{', says what is wanted' * said}", said))
    env_fns = [partial(TinyEnv, i) for i in range(3)]
    kinds = []
    for vec in (library.make(env_fns, "fork"), library.serial(env_fns)):
        vec.reset()
        vec.step()
        kinds.append(vec.attribute("kinds")[1])
    return verdict(*parts, (f"an env gets {kinds[0][0]}, as in the serial class", kinds[0] == kinds[1]))


@case(
    "H1",
    "one environment tells 1, another 1.5",
    "tests/test_gymnasium.py::test_numbers_that_grow_wider_keep_their_values",
)
def widening_infos(library: Library) -> Outcome:
    vec = library.make([partial(Telling, {"x": 1}), partial(Telling, {"x": 1.5})], "fork")
    vec.reset()
    step = vec.step()
    values = [vec.info(step, i, "x") for i in range(2)]
    return Outcome(f"{values[0]:g} and {values[1]:g}", values == [1, 1.5])


@case(
    "H2",
    "keys that only some environments tell",
    "tests/test_sb3.py::test_what_comes_back_is_what_learners_rely_on",
    "tests/test_gymnasium.py::test_500_steps_equal_syncs_bit_for_bit",
    "tests/test_vector_infos.py::test_a_list_comes_back_from_a_dict",
)
def sparse_infos(library: Library) -> Outcome:
    vec = library.make([partial(Telling, {"a": 1.0}), partial(Telling, {"b": 2.0})], "fork")
    vec.reset()
    step = vec.step()
    seen = [[vec.info(step, i, key) for key in "ab"] for i in range(2)]
    form = ("a list of dicts" if library.sb3 else "a dict of arrays with masks", seen == [[1.0, None], [None, 2.0]])
    if not library.ours:
        return verdict(form)  # neither has promised the other format
    from fastvec import infos_to_dict, infos_to_list

    listed = step.infos if library.sb3 else infos_to_list(step.infos, 2)
    batched = infos_to_dict(step.infos) if library.sb3 else step.infos
    told = [{"a": 1.0}, {"b": 2.0}]
    there = all(listed[i][key] == value for i, info in enumerate(told) for key, value in info.items())
    there = there and batched["a"].tolist() == [1, 0] and batched["_a"].tolist() == [True, False]
    back = infos_to_list(infos_to_dict(listed), 2) == listed and repr(infos_to_dict(listed)) == repr(batched)
    return verdict(form, ("the other one there and back" if there and back else "not the other one", there and back))


class Rendering(TinyEnv):
    """Renders what it is told to although it says that it renders images."""

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"
    rendered: Any = None

    def render(self) -> Any:
        return self.rendered


class Drawing(Rendering):
    """Renders an image."""

    rendered = np.full((2, 3, 3), 7, np.uint8)


@case(
    "I1",
    "`render()` of environments that return None, all of them or one of two",
    "tests/test_sb3.py::test_what_is_no_image_is_left_out_of_the_picture",
    "tests/test_gymnasium.py::test_what_is_no_image_is_returned_as_it_is",
)
def no_image(library: Library) -> Outcome:
    parts = []
    for what, env_fns in {"all": [Rendering] * 2, "one": [Rendering, Drawing]}.items():
        vec = library.make(env_fns, "fork")
        vec.reset()
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            rendered, error = attempt(vec.raw.render)
        image = Drawing.rendered if what == "one" else None
        # A picture of the images that there are, or what each environment returned.
        if library.sb3:
            right = rendered is None if image is None else np.array_equal(rendered, image)
            shown = "None" if rendered is None else "the other's image" if right else "something else"
        else:
            right = rendered is not None and len(rendered) == 2 and same(rendered[0], None) and same(rendered[1], image)
            shown = "what they returned" if right else "something else"
        parts.append((f"{what}: {name_of(error) if error else f'returns {shown}'}", error is None and right))
    return verdict(*parts)
