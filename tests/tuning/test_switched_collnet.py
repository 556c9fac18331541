"""The network plugin's all-reduce by a switch in software: right sums, lost parties, and trees where there is none."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coppice.innetwork.serving import SwitchServer
from coppice.tuning.building import compiler_found
from tuning.test_collnet_plugin import play as played

HERE = Path(__file__).parent
REMOTE, INVALID_ARGUMENT, INVALID_USAGE = 6, 4, 5
SUM = 0

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the plugin is for Linux, as NCCL is"),
    pytest.mark.skipif(
        compiler_found(language="C++20") is None,
        reason="the plugin is C++, and there is no compiler here: install one or set CXX",
    ),
]


@pytest.fixture
def process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`coppice switch serve` and its address."""
    words = [sys.executable, "-m", "coppice", "switch", "serve", "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        found = None
        while found is None:
            line = server.stdout.readline()
            assert line
            found = re.search(r"127\.0\.0\.1:\d+", line)
        yield server, found[0]
        server.kill()


def play(library: Path, job: str, nodes: int, switch: str, **given: Any) -> list[dict[str, Any]]:
    """What each node tells of a job whose sums go to a switch."""
    settings = {"COPPICE_COLLNET_SWITCH": switch, **given.pop("settings", {})}
    return played(library, job, nodes, settings=settings, **given)


def aggregated(switch: SwitchServer) -> int:
    """Contributions that the switch added; ends it, since its counters are whole only then."""
    switch.close()
    return int(switch.report()["protocol"]["aggregated"])


@pytest.mark.parametrize("nodes", [2, 5, 8])
def test_sums_go_by_the_switch_with_other_calls_in_flight(library: Path, nodes: int) -> None:
    with SwitchServer() as switch:
        given = {"newest": [12, 8], "seed": nodes, "calls": 16, "flying": 5, "largest": 90_000, "sums": 0.6}
        told = play(library, "random", nodes, switch.address, **given)
        assert [each.get("versions") for each in told] == [[12, 8]] * nodes, told[0]["stderr"]
        assert all("sums floats at the switch" in str(each["log"]) for each in told)
        assert not re.search("gives up|trees instead", str([each["log"] for each in told]))
        assert aggregated(switch) > nodes


def test_a_killed_switch_is_an_error_and_one_sentence_everywhere(
    library: Path, process: tuple[subprocess.Popen[str], str]
) -> None:
    server, address = process
    given = {"victim": 1, "dies_at": 3, "process": server.pid, "largest": 50_000, "operation": SUM}
    for each in play(library, "killed", 3, address, **given):
        assert each["codes"] == [REMOTE, REMOTE], each
        lost = [line for line in each["warnings"] if "gives up" in line]
        assert len(lost) == 1
        assert "the switch" in lost[0] or "node" in lost[0]


def test_a_killed_node_is_an_error_everywhere(library: Path) -> None:
    with SwitchServer() as switch:
        told = play(library, "killed", 4, switch.address, victim=2, dies_at=3, largest=50_000, operation=SUM)
    assert told[2]["status"] == -9
    assert [each["codes"] for node, each in enumerate(told) if node != 2] == [[REMOTE, REMOTE]] * 3


@pytest.mark.parametrize("fewer", [0, 250])
def test_calls_that_differ_are_refused(library: Path, fewer: int) -> None:
    with SwitchServer() as switch:
        told = play(library, "out_of_order", 3, switch.address, fewer=fewer)
    assert all(each["code"] in (0, INVALID_USAGE, REMOTE) for each in told)
    assert "call alike in the same order" in str([each["warnings"] for each in told])


def test_trees_are_taken_where_no_switch_is(library: Path, tmp_path: Path) -> None:
    with SwitchServer() as gone:
        address = gone.address
    told = play(library, "random", 3, address, calls=6, flying=2, largest=1000)
    assert [each.get("versions") for each in told] == [[12]] * 3, told[0]["stderr"]
    assert all(f"the switch at {address} cannot be used, trees instead" in str(each["log"]) for each in told)
    secret = tmp_path / "secret"
    secret.write_text("one\n")
    with SwitchServer(secret=b"one", workers=2) as switch:
        settings = {"COPPICE_SWITCH_SECRET": str(secret), "COPPICE_COLLNET_TIMEOUT_S": "5"}
        told = play(
            library, "random", 2, switch.address, calls=4, flying=2, largest=1000, settings=settings, sums=1
        )
        assert aggregated(switch)
    with SwitchServer(secret=b"one", workers=2) as switch:
        told = play(library, "random", 3, switch.address, calls=4, flying=2, largest=1000, settings=settings)
        assert all("trees instead" in str(each["log"]) for each in told)


def test_all_nodes_have_to_name_it(library: Path) -> None:
    with SwitchServer() as switch:
        places = [{"COPPICE_COLLNET_SWITCH": switch.address}, {"COPPICE_COLLNET_SWITCH": ""}]
        told = play(library, "joined", 2, "", environment=places)
    assert [each["code"] for each in told] == [0, 0]
    assert "COPPICE_COLLNET_SWITCH is not set on all nodes: trees instead" in str(told[0]["log"])


@pytest.mark.parametrize("place", ["nowhere", ":9", "host:", "host:0", "host:99999", "host:9x"])
def test_a_bad_place_turns_the_network_off(library: Path, place: str) -> None:
    told = play(library, "refused", 1, place)
    assert told[0]["code"] == INVALID_ARGUMENT
    assert f"expected COPPICE_COLLNET_SWITCH=HOST:PORT, found {place}" in str(told[0]["log"])


def test_a_secret_that_cannot_be_read_turns_the_network_off(library: Path, tmp_path: Path) -> None:
    for text in (None, " \n"):
        file = tmp_path / "secret"
        if text is not None:
            file.write_text(text)
        told = play(library, "refused", 1, "host:9000", settings={"COPPICE_SWITCH_SECRET": str(file)})
        assert told[0]["code"] == INVALID_ARGUMENT
        assert str(file) in str(told[0]["log"])
