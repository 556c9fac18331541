"""The doctor of put/signal programs: every rule has a file that trips it and one that does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from coppice.collectives import Collective
from coppice.doctor import Diagnosis, Severity, diagnose, rules_for
from coppice.errors import InputError
from coppice.program.dialects.put_signal.lower import lower_put_signal
from support.put_signal_cases import forest, text_of, tree_of

Change = Callable[[dict[str, Any]], object]
RING = forest("ring", Collective.ALL_REDUCE, (("gpus", 3),))
GOOD = {"version": "2.31.2"}


def same(tree: dict[str, Any]) -> None:
    """The sample as it is."""


def setup(**values: bool) -> Change:
    return lambda tree: tree["setup"].update(values)


def first(tree: dict[str, Any], name: str) -> list[Any]:
    """The first operation of a name."""
    return next(
        row
        for calls in tree["calls"]
        for call in calls
        for word in ("transfer", "wait", "local")
        for row in call.get(word, ())
        if row[0] == name
    )


def member(name: str, place: int, add: int) -> Change:
    def change(tree: dict[str, Any]) -> None:
        first(tree, name)[place] += add

    return change


def signal_index(tree: dict[str, Any]) -> None:
    """Everything with the index 1."""
    for calls in tree["calls"]:
        for call in calls:
            for row in (*call.get("transfer", ()), *call.get("wait", ())):
                row[-2] = 1


def idle_rank(tree: dict[str, Any]) -> None:
    """A third rank with nothing to do."""
    tree["setup"]["warm_up"] = False
    for calls in tree["calls"]:
        calls.clear()
    tree["calls"][0] = [{"stream": 0, "communicator": 0, "transfer": [["signal", 0, 0, 0]]}]


def unequal(tree: dict[str, Any]) -> None:
    tree["setup"]["equal_windows"] = False
    tree["staging"][0] += 1


def crowded(tree: dict[str, Any]) -> None:
    """A group of 300 signals to one rank."""
    group = {"stream": 0, "communicator": 0, "transfer": [["signal", 1, 0, 0]] * 300}
    tree["calls"][0].append(group)
    tree["calls"][1].append({"stream": 0, "communicator": 0, "wait": [["wait", 0, 300, 0, 0]]})


def captured_twice(tree: dict[str, Any]) -> None:
    tree["setup"]["capture"] = True
    crowded(tree)


def wait_first(tree: dict[str, Any]) -> None:
    """Every rank waits before it puts."""
    for calls in tree["calls"]:
        calls.sort(key=lambda call: "transfer" in call)


def no_credit(tree: dict[str, Any]) -> None:
    """All landing buffers are one."""
    for calls in tree["calls"]:
        for call in calls:
            for row in (*call.get("transfer", ()), *call.get("local", ())):
                for at, value in enumerate(row):
                    if value == "staging":
                        row[at + 1] = 0


def ungrouped(tree: dict[str, Any]) -> None:
    for calls in tree["calls"]:
        for at, call in enumerate(calls):
            if len(call.get("transfer", ())) > 1:
                calls.insert(at, {**call, "transfer": [call["transfer"].pop()]})
                return


def two_streams(tree: dict[str, Any]) -> None:
    tree["calls"][0][-1]["stream"] += 1


TOPOLOGY = "topology"
CASES: dict[str, tuple[Change, dict[str, str], Change, dict[str, str]]] = {
    "V01": (same, {"version": "2.28.9"}, same, {"version": "2.29.2"}),
    "V02": (signal_index, {"version": "2.30.7"}, same, {"version": "2.30.7"}),
    "V03": (setup(capture=True), {"version": "2.29.7"}, setup(capture=True), {"version": "2.30.3"}),
    "V04": (crowded, {"version": "2.30.3"}, crowded, {"version": "2.30.7"}),
    "V05": (same, {"version": "2.29.7"}, same, {"version": "2.30.7"}),
    "V06": (same, {"version": "2.30.7"}, setup(capture=True), {"version": "2.30.7"}),
    "W01": (idle_rank, {"version": "2.30.7"}, idle_rank, GOOD),
    "W02": (setup(whole_allocations=False), {"version": "2.30.7"}, setup(whole_allocations=False), GOOD),
    "W03": (unequal, {"version": "2.30.3"}, unequal, GOOD),
    "W04": (same, {"environment": "NCCL_RMA_DISABLE=1"}, same, {"environment": "NCCL_RMA_DISABLE=0,NCCL_DEBUG=INFO"}),
    "W05": (same, {TOPOLOGY: "uneven"}, same, {TOPOLOGY: "even"}),
    "U01": (member("put", 5, 10_000), {}, same, {}),
    "U02": (member("wait", 1, 50), {}, same, {}),
    "U03": (member("wait", 2, 1), {}, same, {}),
    "U04": (wait_first, {}, same, {}),
    "U05": (no_credit, {}, same, {}),
    "U06": (captured_twice, {}, setup(capture=True), {}),
    "D01": (same, {"max_connections": "1"}, same, {"max_connections": "8"}),
    "D02": (ungrouped, {}, same, {}),
    "D03": (two_streams, {}, same, {}),
    "D04": (setup(nonblocking=True, per_thread_stream=True), {}, setup(nonblocking=True), {}),
    "D05": (setup(watchdog=False), {}, same, {}),
}  # fmt: skip
"""A change and what is told of the job where each rule trips, and where it does not."""


def examined(change: Change, told: dict[str, str], tmp_path: Any) -> Diagnosis:
    tree = tree_of(lower_put_signal(RING, pieces=4))
    change(tree)
    told = dict(told)
    if TOPOLOGY in told:
        file = tmp_path / "topology.json"
        hosts = {"uneven": (2, 1), "even": (3,)}[told[TOPOLOGY]]
        nodes = [
            {"id": f"g{box}.{gpu}", "kind": "gpu", "host": f"box{box}"}
            for box, gpus in enumerate(hosts)
            for gpu in range(gpus)
        ]
        links = [{"from": node["id"], "to": "switch", "gb_per_s": 10} for node in nodes]
        switch = {"id": "switch", "kind": "switch"}
        file.write_text(
            json.dumps(
                {
                    "format": "coppice-topology",
                    "version": 1,
                    "name": "t",
                    "nodes": [*nodes, switch],
                    "links": links,
                }
            )
        )
        told[TOPOLOGY] = str(file)
    return diagnose(text_of(tree), "nccl", options=told)


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_trips_and_does_not(rule: str, tmp_path: Any) -> None:
    change, told, other, told_then = CASES[rule]
    tripped = examined(change, told, tmp_path)
    assert rule in [finding.rule for finding in tripped.findings]
    assert rule not in [finding.rule for finding in examined(other, told_then, tmp_path).findings]


def test_every_rule_has_a_case() -> None:
    assert CASES.keys() == {rule.id for rule in rules_for("nccl")}


def test_a_program_of_ours_is_as_it_should_be(tmp_path: Any) -> None:
    found = examined(same, {**GOOD, "max_connections": "8"}, tmp_path)
    assert found.ok
    assert not found.findings
    assert not found.undecided


def test_signals_of_several_indices_are_noted_where_they_can_be(tmp_path: Any) -> None:
    found = examined(signal_index, GOOD, tmp_path)
    assert [(each.rule, each.severity) for each in found.findings] == [("V02", Severity.NOTE)]


def test_what_is_not_known_is_not_decided(tmp_path: Any) -> None:
    found = examined(same, {}, tmp_path)
    assert {rule.rule for rule in found.undecided} >= {"V01", "W01"}


def test_rccl_is_called_by_its_name(tmp_path: Any) -> None:
    found = examined(same, {**GOOD, "version": "rccl-2.29.1"}, tmp_path)
    assert found.lines()[0].endswith(" for RCCL 2.29.1: it will NOT work")
    old = examined(same, {**GOOD, "version": "rccl-2.27.7"}, tmp_path)
    assert [each.fix for each in old.findings if each.rule == "V01"] == ["take RCCL 2.30.7 or later"]
    assert not any("NCCL 2" in each.fix.replace("RCCL 2", "") for each in old.findings)


def test_more_connections_than_cuda_takes_are_not_asked_for() -> None:
    made = lower_put_signal(
        forest("ring", Collective.ALL_GATHER, (("gpus", 4),)), pieces=40, communicators=40
    )
    found = diagnose(text_of(tree_of(made)), "nccl", options={"max_connections": "32"})
    assert [each.fix for each in found.findings if each.rule == "D01"] == [
        "export with fewer than 32 `communicators`"
    ]


def test_the_content_tells_the_target() -> None:
    text = text_of(tree_of(lower_put_signal(RING)))
    assert diagnose(text).target == "nccl"
    with pytest.raises(InputError, match=r"\$\.format: expected 'coppice-put-signal', found None: make one"):
        diagnose(b"{}", "nccl")
