"""Searches through all interleavings: nothing wrong in SwitchML, and what is wrong elsewhere is found and told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from coppice.cli import app
from coppice.errors import CheckError, InputError
from coppice.innetwork.simulated import search_interleavings
from coppice.innetwork.systems import PROTOCOLS

PUBLISHED = {"published_rule": 1.0}


@pytest.mark.parametrize(
    "job",
    [
        {"workers": 1, "slots": 1, "elements": [2, 1]},
        {"workers": 2, "slots": 1, "elements": 3},
        {"workers": 2, "slots": 1, "elements": [1, 0, 2], "losses": 2},
        {"workers": 2, "slots": 2, "elements": 4, "early_timeouts": 0},
        {"workers": 2, "slots": 2, "elements": [1, 2], "early_timeouts": 0},
        {"workers": 2, "slots": 2, "window": 1, "elements": 3},
        {"workers": 3, "slots": 1, "elements": 3, "early_timeouts": 0},
        {"workers": 3, "slots": 2, "elements": 2, "duplicates": 0, "early_timeouts": 0},
        {"workers": 2, "tree": [1, 1], "elements": 2},
        {"workers": 3, "tree": [2, 1], "elements": 2, "early_timeouts": 0},
        {"workers": 2, "elements": 3, "settings": {"first_packet": 2**32 - 1}},
        {"workers": 2, "elements": 3, "settings": PUBLISHED, "reordering": False},
    ],
)
def test_no_interleaving_is_wrong(job: dict[str, Any]) -> None:
    found = search_interleavings(**job)
    found.require_ok()
    assert found.ok
    assert found.whole
    assert found.states > 10


@pytest.mark.parametrize("protocol", sorted(set(PROTOCOLS) - {"fpisa"}))  # integers are searched
@pytest.mark.parametrize("budget", ["losses", "duplicates"])
def test_no_interleaving_is_wrong_in_other_protocols(protocol: str, budget: str) -> None:
    budgets = {"losses": 0, "duplicates": 0, "early_timeouts": 0, budget: 1}
    slots = 64 if protocol == "netreduce" else 2
    found = search_interleavings(
        protocol=protocol, slots=slots, window=1, elements=2, most_states=20_000, **budgets
    )
    found.require_ok()
    assert found.whole or protocol in ("camdoop", "netreduce")  # which do more than fits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "states"),
    [
        # Two to four minutes on one core, most of it for the first two.
        ({"workers": 2, "slots": 1, "elements": 4, "losses": 2, "duplicates": 2}, 10**5),
        ({"workers": 2, "slots": 2, "elements": 4}, 5 * 10**5),
        ({"workers": 3, "slots": 1, "elements": 3, "losses": 2}, 10**5),
    ],
)
def test_no_interleaving_is_wrong_with_larger_budgets(job: dict[str, Any], states: int) -> None:
    found = search_interleavings(**job, most_states=10**7)
    found.require_ok()
    assert found.whole
    assert found.states > states


def test_the_published_rule_takes_a_late_copy_for_new() -> None:
    found = search_interleavings(losses=0, early_timeouts=0, settings=PUBLISHED)
    assert not found.ok
    assert "wrong sum" in found.fault
    assert len(found.trace) == 10
    copied = [line for line in found.trace if "a copy stays under way" in line]
    assert len(copied) == 1
    # The copy comes again once its set is free, before the packet that belongs there.
    packet = copied[0].partition(",")[0]
    assert packet in found.trace
    assert "set 0 packet 0" in packet
    assert "packet 2" in found.trace[-1]
    with pytest.raises(CheckError, match="worker 0 has a wrong sum"):
        found.require_ok()


def test_a_search_that_is_cut_short_says_so() -> None:
    assert not search_interleavings(most_states=100).whole
    found = search_interleavings(most_events=3)
    assert (found.whole, found.depth, found.ok) == (False, 3, True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"losses": -1}, "`losses`"),
        ({"elements": []}, "`elements`"),
        ({"most_states": 2**30}, "kept in memory"),
        ({"workers": 2, "tree": [2, 2]}, "make the groups add up"),
        ({"workers": 33}, "1 to 32 workers"),
        ({"protocol": "x"}, "x"),
        ({"slots": "1"}, "to be an int"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        search_interleavings(**wrong)


def test_the_command_prints_and_exits_by_what_it_found() -> None:
    run = CliRunner()
    good = run.invoke(app, ["switch", "check", "--elements", "1,1", "--tree", "1,1", "--json"])
    assert good.exit_code == 0
    assert json.loads(good.stdout)["ok"] is True
    bad = run.invoke(
        app, ["switch", "check", "--losses", "0", "--early-timeouts", "0", "--set", "published_rule=1"]
    )
    assert bad.exit_code == 1
    assert "wrong sum" in bad.stdout
    assert "10  switch -> worker 0: slot 0 set 0 packet 2" in bad.stdout
    part = run.invoke(app, ["switch", "check", "--most-states", "50"])
    assert part.exit_code == 0
    assert "a part" in part.stdout
    for words in (["--elements", "a"], ["--set", "published_rule=x"], ["--tree", "3"]):
        assert run.invoke(app, ["switch", "check", *words]).exit_code == 2
