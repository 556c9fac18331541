"""`coppice topology` as a user types it."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coppice.cli import app
from coppice.topology import preset, resolve
from coppice.topology.readers.document import topology_json

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["topology", *arguments], input=stdin)


def printed(*arguments: str, stdin: bytes | None = None) -> str:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def test_list() -> None:
    text = printed("list")
    assert "dgx-a100" in text
    assert "random-balanced" in text
    one = printed("list", "dgx-h100")
    assert "data sheet" in one
    assert "--set gpus=" in one
    listed = json.loads(printed("list", "--json"))["presets"]
    assert {"name", "description", "source", "parameters"} <= listed[0].keys()
    assert len(listed) >= 20
    assert run("list", "dgx").exit_code == 2


def test_show() -> None:
    text = printed("show", "dgx-a100", "--boxes", "2")
    for part in ("16 GPUs, 4 switches, 16 NICs", "16 x gpu <-> nvswitch, 300 GB/s", "2 hosts of 8 ranks"):
        assert part in text
    summary = json.loads(printed("show", "dgx-a100", "--boxes", "2", "--rates", "measured", "--json"))
    assert summary["ranks"] == 16
    assert summary["gpus"] == [{"in_gb_per_s": "264", "out_gb_per_s": "264", "count": 16}]
    assert summary["warnings"] == []
    torus = json.loads(printed("show", "torus", "--set", "dims=2x3", "--set", "gb_per_s=1,2", "--json"))
    assert torus["gpus"] == [{"in_gb_per_s": "5", "out_gb_per_s": "5", "count": 6}]


def test_show_tells_what_is_wrong() -> None:
    text = printed("show", "ring", "--ranks", "0,4")
    assert "gpu0 cannot exchange data with gpu4" in text
    assert "cannot" not in printed("show", "ring", "--ranks", "0,4", "--relay-unranked")
    text = printed("degrade", "dgx-a100", "--link", "gpu0,nvswitch=50%", "--one-way")
    text = printed("show", "-", stdin=text.encode())
    assert "nvswitch: in 2250, out 2400 GB/s" in text
    assert "nvswitch can send more than it receives" in text


def test_import_rounds_and_names(tmp_path: Path) -> None:
    file = tmp_path / "box.json"
    third = topology_json(preset("ring", gpus=3, gb_per_s=Fraction(1, 3)))
    text = printed("import", "-", "--round", "2", "--name", "mine", "-o", str(file), stdin=third)
    assert "wrote" in text
    read = resolve(str(file))
    assert read.name == "mine"
    assert read.gb_per_s(0) == Fraction(33, 100)
    assert json.loads(printed("import", "ring"))["format"] == "coppice-topology"


def test_compose(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    printed(
        "compose", "2xdgx-h100", "mi250@amd", "--fabric", "rail", "--set", "rails=2", "--set", "spines=2",
        "--port-rate", "25/2", "-o", str(file),
    )  # fmt: skip
    made = resolve(str(file))
    assert made.num_ranks == 32
    assert made.hosts == ("dgx-h100-0", "dgx-h100-1", "amd")
    e = made.link_index[made.node_index["amd/gpu3"], made.node_index["rail1"]]
    assert made.gb_per_s(e) == Fraction(25, 2)
    again = json.loads(printed("compose", "2xdgx-a100", "--fabric", "rail", "--set", "rails=2"))
    assert [row["id"] for row in again["nodes"]] == list(preset("dgx-a100", boxes=2).node_ids)
    summary = json.loads(printed("compose", "2xdgx-a100", "--rates", "measured", "-o", str(file), "--json"))
    assert summary["output"] == str(file)
    assert summary["gpus"][0]["in_gb_per_s"] == "264"


def test_subset_and_degrade(tmp_path: Path) -> None:
    file = tmp_path / "part.json"
    printed("subset", "dgx-a100", "--boxes", "2", "--ranks", "0-3,8-11", "-o", str(file))
    assert resolve(str(file)).num_ranks == 8
    printed(
        "degrade", "dgx-a100", "--boxes", "2", "--node", "box0/nic3=50%", "--remove", "rank9",
        "--remove", "box1/nic0,rail0", "-o", str(file),
    )  # fmt: skip
    slow = resolve(str(file))
    assert slow.num_ranks == 15
    e = slow.link_index[slow.node_index["box0/nic3"], slow.node_index["rail1"]]
    assert slow.gb_per_s(e) == Fraction(25, 2)
    assert (slow.node_index["box1/nic0"], slow.node_index["rail0"]) not in slow.link_index


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "dgx-a10"), "did you mean 'dgx-a100'"),
        (("show", "ring", "--ranks", "0-x"), "0-x"),
        (("show", "ring", "--ranks", "3-1"), "write 1-3"),
        (("show", "ring", "--set", "gpus"), "--set KEY=VALUE"),
        (("show", "ring", "--set", "gpus=4", "--set", "gpus=5"), "gives gpus twice"),
        (("compose", "torus"), "not a box"),
        (("compose", "2xdgx-a100", "--set", "rails=2"), "no field 'rails'"),
        (("compose", "@x"), "[COUNTx]SPEC[@NAME]"),
        (("degrade", "dgx-a100"), "found no --link"),
        (("degrade", "dgx-a100", "--link", "gpu0=3"), "as A,B"),
        (("degrade", "dgx-a100", "--node", "gpu0"), "NODE=SHARE"),
        (("degrade", "dgx-a100", "--remove", "gpu0,gpu1"), "gpu0 is linked to nvswitch"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_examples_are_the_presets() -> None:
    assert resolve(str(EXAMPLES / "two-dgx-a100.json")).sha256 == preset("dgx-a100", boxes=2).sha256
    assert resolve(str(EXAMPLES / "two-mi250.json")).sha256 == preset("mi250", boxes=2).sha256
    mixed = resolve(str(EXAMPLES / "mixed-cluster.json"))
    assert mixed.num_ranks == 40
    assert mixed.hosts == ("h100-0", "h100-1", "h100-2", "h100-3", "mi300x")
