"""Damaged templates: the reader or the verifier finds out, whatever is wrong."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.forest import Forest, Phase, expanded
from coppice.schedule.loads import forest_loads
from coppice.schedule.lower import lower
from coppice.schedule.plan import Plan
from coppice.schedule.shape import shape
from coppice.schedule.verification.verify import verify
from planners.template_cases import (
    MULTI_ORBIT,
    TWO_PHASES,
    assert_same_columns,
    forest_in,
    planned,
    symmetry_in,
)

Edit = Callable[[Forest], Forest]


def heavier(forest: Forest) -> Forest:
    weight = forest.tree_weight.copy()
    weight[0] += 1
    return replace(forest, tree_weight=weight)


def re_aimed(forest: Forest) -> Forest:
    """The last edge of the first tree once more enters where the first one does."""
    first, last = int(forest.tree_start[0]), int(forest.tree_start[1]) - 1
    src, dst, path = forest.edge_src.copy(), forest.edge_dst.copy(), forest.edge_path.copy()
    src[last], dst[last], path[last] = src[first], dst[first], path[first]
    return replace(forest, edge_src=src, edge_dst=dst, edge_path=path)


def unlinked(forest: Forest) -> Forest:
    """A path that leaves the links: its first node becomes another one."""
    nodes = forest.path_nodes.copy()
    path = forest.path(int(forest.edge_path[0]))
    known = {(a, b) for a, b in zip(forest.topology.src.tolist(), forest.topology.dst.tolist(), strict=True)}
    start = int(forest.path_start[forest.edge_path[0]])
    nodes[start] = next(
        v for v in range(forest.topology.num_nodes) if (v, path[1]) not in known and v != path[1]
    )
    return replace(forest, path_nodes=nodes)


def lost_edge(forest: Forest) -> Forest:
    keep = np.arange(forest.num_edges) != int(forest.tree_start[1]) - 1
    start = forest.tree_start.copy()
    start[1:] -= 1
    return replace(
        forest,
        tree_start=start,
        edge_src=forest.edge_src[keep],
        edge_dst=forest.edge_dst[keep],
        edge_path=forest.edge_path[keep],
    )


def other_root(forest: Forest) -> Forest:
    root = forest.tree_root.copy()
    ranks = forest.topology.rank_nodes.tolist()
    root[0] = next(v for v in ranks if v != root[0])
    return replace(forest, tree_root=root)


def lost_tree(forest: Forest) -> Forest:
    first = int(forest.tree_start[1])
    return replace(
        forest,
        tree_root=forest.tree_root[1:],
        tree_weight=forest.tree_weight[1:],
        tree_phase=forest.tree_phase[1:],
        tree_start=forest.tree_start[1:] - first,
        edge_src=forest.edge_src[first:],
        edge_dst=forest.edge_dst[first:],
        edge_path=forest.edge_path[first:],
    )


def with_symmetry(forest: Forest, **changes: Any) -> Forest:
    return replace(forest, symmetry=replace(symmetry_in(forest), **changes))


def swapped_images(forest: Forest) -> Forest:
    generators = symmetry_in(forest).generators.copy()
    first, second = forest.topology.rank_nodes[:2].tolist()
    generators[0, [first, second]] = generators[0, [second, first]]
    return with_symmetry(forest, generators=generators)


def repeated_image(forest: Forest) -> Forest:
    generators = symmetry_in(forest).generators.copy()
    generators[0, 0] = generators[0, 1]
    return with_symmetry(forest, generators=generators)


def identity_generator(forest: Forest) -> Forest:
    generators = symmetry_in(forest).generators.copy()
    generators[0] = np.arange(generators.shape[1])
    return with_symmetry(forest, generators=generators)


def doubled_order(forest: Forest) -> Forest:
    first, *rest = symmetry_in(forest).orders
    return with_symmetry(forest, orders=(2 * first, *rest))


def repeated_generator(forest: Forest) -> Forest:
    symmetry = symmetry_in(forest)
    return with_symmetry(
        forest,
        orders=(*symmetry.orders, symmetry.orders[0]),
        generators=np.concatenate([symmetry.generators, symmetry.generators[:1]]),
    )


FOREST_INJURIES: list[Edit] = [heavier, re_aimed, unlinked, lost_edge, other_root, lost_tree]
SYMMETRY_INJURIES: list[Edit] = [
    swapped_images,
    repeated_image,
    identity_generator,
    doubled_order,
    repeated_generator,
]


def refused(made: Plan) -> tuple[str, ...]:
    """Why a plan fails, by the reader or by the verifier after a round trip; empty if it passes both."""
    try:
        again = decode_plan(encode_plan(made), name="p.json")
    except InputError as error:
        return (str(error),)
    return verify(again).failures


class TestInjuries:
    @pytest.mark.parametrize("collective", TWO_PHASES, ids=str)
    @pytest.mark.parametrize("name", MULTI_ORBIT)
    @pytest.mark.parametrize("injure", FOREST_INJURIES, ids=lambda edit: edit.__name__)
    def test_injured_trees_fail(self, injure: Edit, name: str, collective: Collective) -> None:
        made = planned(name, collective)
        injured = replace(made, forest=injure(forest_in(made)))
        assert not verify(injured).ok
        assert refused(injured)

    @pytest.mark.parametrize("name", ["ring 5", "torus 4x4", "dgx-a100 2", "fat-tree", *MULTI_ORBIT])
    @pytest.mark.parametrize("injure", SYMMETRY_INJURIES, ids=lambda edit: edit.__name__)
    def test_injured_symmetries_fail(self, injure: Edit, name: str) -> None:
        made = planned(name, Collective.ALL_GATHER)
        injured = replace(made, forest=injure(forest_in(made)))
        report = verify(injured)
        assert not report.ok
        assert "under no symmetry" in report.failures[0]
        (reason,) = refused(injured)
        assert reason.startswith("expected a symmetry of the topology at p.json $.symmetry: ")

    @pytest.mark.parametrize("collective", TWO_PHASES, ids=str)
    @pytest.mark.parametrize("name", MULTI_ORBIT)
    def test_an_orbit_with_too_much_fails(self, name: str, collective: Collective) -> None:
        """All trees of one orbit of roots go, and another orbit's come twice: every tree is right, the sum is not."""
        made = planned(name, collective)
        forest = forest_in(made)
        orbit = symmetry_in(forest).node_orbit[forest.tree_root]
        kept = np.where(orbit == orbit[0], 2 * forest.tree_weight, forest.tree_weight)
        gone = orbit == np.unique(orbit)[-1]
        assert gone.any()
        assert not gone[0]
        if collective is Collective.ALL_REDUCE:
            gone &= forest.tree_phase == Phase.BROADCAST
        trees = np.flatnonzero(~gone)
        rows = np.concatenate([np.arange(forest.tree_start[t], forest.tree_start[t + 1]) for t in trees])
        lengths = np.diff(forest.tree_start)[trees]
        injured = replace(
            forest,
            tree_root=forest.tree_root[trees],
            tree_weight=kept[trees],
            tree_phase=forest.tree_phase[trees],
            tree_start=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
            edge_src=forest.edge_src[rows],
            edge_dst=forest.edge_dst[rows],
            edge_path=forest.edge_path[rows],
        )
        slow = replace(made, forest=injured, bound=None, inv_rate=100 * made.inv_rate)
        report = verify(slow)
        assert not report.ok
        expected = re.compile(r"trees at root |[0-9]+ more of the [0-9]+ roots ")
        assert all(expected.match(failure) for failure in report.failures), report.failures
        assert refused(slow)

    def test_templates_cannot_serve_a_single_root(self) -> None:
        made = planned("ring 5", Collective.ALL_GATHER)
        for root in range(5):
            problem = replace(made.problem, collective=Collective.BROADCAST, root=root)
            forest = replace(forest_in(made), collective=Collective.BROADCAST)
            report = verify(Plan(problem=problem, inv_rate=Fraction(100), forest=forest))
            assert not report.ok

    def test_weights_must_be_those_of_the_orbits(self) -> None:
        made = planned("petersen", Collective.ALL_GATHER)
        forest = forest_in(made)
        symmetry = symmetry_in(forest)
        orbits = symmetry.node_orbit[forest.topology.rank_nodes]
        tripled = np.where(symmetry.node_orbit[forest.tree_root] == orbits[0], 3, 1) * forest.tree_weight
        weights = tuple(np.where(orbits == orbits[0], 3, 1).tolist())
        problem = replace(made.problem, weights=weights)
        forest = replace(forest, tree_weight=tripled)
        claimed = forest_loads(forest, weights).inv_rate
        assert verify(Plan(problem=problem, inv_rate=claimed, forest=forest)).ok
        whole = verify(Plan(problem=problem, inv_rate=claimed, forest=expanded(forest)))
        assert whole.ok
        assert whole.inv_rate == claimed
        uneven = replace(problem, weights=(4, *weights[1:]))
        report = verify(Plan(problem=uneven, inv_rate=100 * claimed, forest=forest))
        assert not report.ok


def sealed(document: dict[str, Any]) -> bytes:
    members = [f'"{key}": {json.dumps(value)}' for key, value in document.items() if key != "sha256"]
    body = ("{" + ",\n".join(members)).encode()
    return body + b',\n"sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


BAD_SYMMETRIES: list[Any] = [
    None,
    [],
    {},
    {"orders": [5]},
    {"orders": [5], "generators": []},
    {"orders": [], "generators": [[1, 2, 3, 4, 0]]},
    {"orders": [5], "generators": [[1, 2, 3, 4]]},
    {"orders": [5], "generators": [[1, 2, 3, 4, 0, 5]]},
    {"orders": [5], "generators": [[1, 2, 3, 4, 5]]},
    {"orders": [5], "generators": [[1, 2, 3, 4, -1]]},
    {"orders": [5], "generators": [[1, 2, 3, 4, 2**40]]},
    {"orders": [5], "generators": [[1, 2, 3, 4, 0.0]]},
    {"orders": [5], "generators": [[1, 2, 3, 4, "0"]]},
    {"orders": [5], "generators": [[0, 1, 2, 3, 4]]},
    {"orders": [5], "generators": [[1, 0, 2, 3, 4]]},
    {"orders": [2], "generators": [[0, 4, 3, 2, 1]]},  # a reflection: an automorphism that is not free
    {"orders": [4], "generators": [[1, 2, 3, 4, 0]]},
    {"orders": [1], "generators": [[0, 1, 2, 3, 4]]},
    {"orders": [0], "generators": [[1, 2, 3, 4, 0]]},
    {"orders": [-5], "generators": [[1, 2, 3, 4, 0]]},
    {"orders": [10**18], "generators": [[1, 2, 3, 4, 0]]},
    {"orders": [10**30], "generators": [[1, 2, 3, 4, 0]]},
    {"orders": [5, 5], "generators": [[1, 2, 3, 4, 0], [1, 2, 3, 4, 0]]},
    {"orders": [2] * 100, "generators": [[0, 1, 2, 3, 4]] * 100},
    {"orders": [5], "generators": [[1, 2, 3, 4, 0]], "extra": 1},
]


class TestFileMembers:
    @pytest.mark.parametrize("symmetry", BAD_SYMMETRIES, ids=lambda s: json.dumps(s)[:50])
    def test_what_is_no_symmetry_is_refused(self, symmetry: Any) -> None:
        document = json.loads(encode_plan(planned("ring 5", Collective.ALL_GATHER)))
        if symmetry is None:  # a lone tree, and no word about the others
            del document["symmetry"]
            assert not verify(decode_plan(sealed(document), name="p.json")).ok
            return
        document["symmetry"] = symmetry
        with pytest.raises(InputError, match=r"p\.json \$") as caught:
            decode_plan(sealed(document), name="p.json")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400

    def test_a_weaker_group_is_not_enough(self) -> None:
        """Half of the group of a ring of eight is a symmetry, but leaves half of the roots without trees."""
        document = json.loads(encode_plan(planned("ring 8", Collective.ALL_GATHER)))
        generator = document["symmetry"]["generators"][0]
        twice = [generator[v] for v in generator]
        document["symmetry"] = {"orders": [4], "generators": [twice]}
        report = verify(decode_plan(sealed(document), name="p.json"))
        assert not report.ok
        assert any("at root" in failure for failure in report.failures)

    def test_a_symmetry_next_to_a_schedule_is_refused(self) -> None:
        made = planned("ring 5", Collective.ALL_GATHER)
        document = json.loads(encode_plan(replace(made, forest=None, schedule=lower(forest_in(made)))))
        document["symmetry"] = {"orders": [5], "generators": [[1, 2, 3, 4, 0]]}
        with pytest.raises(InputError):
            decode_plan(sealed(document), name="p.json")

    def test_the_trivial_group_changes_nothing(self) -> None:
        made = planned("ring 5", Collective.ALL_GATHER)
        whole = replace(made, forest=expanded(forest_in(made)))
        document = json.loads(encode_plan(whole))
        document["symmetry"] = {"orders": [], "generators": []}
        read = decode_plan(sealed(document), name="p.json")
        assert verify(read).optimal
        assert shape(forest_in(read)) == shape(forest_in(whole))
        assert_same_columns(expanded(forest_in(read)), forest_in(whole))
