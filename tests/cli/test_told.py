"""Nothing is guessed, ignored or put right without a word, and advice that is printed works."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Run
from coppice import InputError, explain, load, plan
from coppice.topology import PRESETS, NodeKind, resolve

SMI = "GPU0 GPU1\nGPU0 X NV18\nGPU1 NV18 X\n"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "box.txt"
    path.write_text(SMI)
    return path


def document(tmp_path: Path, *links: dict[str, object]) -> Path:
    path = tmp_path / "own.json"
    nodes = [{"id": name} for name in ("a", "b")]
    first = {"from": "a", "to": "b", "gb_per_s": 1}
    text = {
        "format": "coppice-topology",
        "version": 1,
        "name": "own",
        "nodes": nodes,
        "links": [first, *links],
    }
    path.write_text(json.dumps(text))
    return path


def test_compose_tells_what_readers_guessed(run: Run, dump: Path) -> None:
    """Once, however many hosts there are; as `topology import` does."""
    words = "18 links per GPU are taken for model h100"
    done = run("topology", "compose", f"2x{dump}", f"{dump}@other", "--port-rate", "25")
    assert done.code == 0
    assert done.err.count(words) == 1
    json.loads(done.out)
    done = run("topology", "compose", f"2x{dump}", "--port-rate", "25", "--host-set", "gpu=h100")
    assert words not in done.err


def test_the_library_tells_what_readers_guessed(dump: Path) -> None:
    with pytest.warns(UserWarning, match="are taken for model h100"):
        resolve(str(dump))


@pytest.mark.parametrize("second", [8, 4])
def test_the_number_of_boxes_is_given_once(second: int, run: Run) -> None:
    done = run("topology", "show", "dgx-a100", "--boxes", "4", "--set", f"boxes={second}")
    assert done.code == 2
    assert f"expected the number of boxes once, found `--boxes 4` and boxes={second}: keep one." in done.err
    with pytest.raises(InputError, match="number of boxes once"):
        resolve("dgx-a100", boxes=4, options={"boxes": "8"})


def test_the_rates_are_given_once(run: Run) -> None:
    for words in (("show", "dgx-a100", "--set"), ("compose", "2xdgx-a100", "--host-set")):
        done = run("topology", *words, "rates=nominal", "--rates", "measured")
        assert done.code == 2
        assert f"found --rates measured and {words[-1]} rates=nominal: keep one" in done.err


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("dgx-h100 --set oversubscription=2", "--set spines=1"),
        ("dgx-h100 --set fabric=fat-tree --set core_oversubscription=2", "--set leaves_per_pod=2"),
        ("dgx-h100 --set fabric=fat-tree --set cores=2 --set spines=2", "--set leaves_per_pod=2"),
    ],
)
def test_fields_of_a_fabric_that_mean_nothing_are_refused(words: str, advice: str, run: Run) -> None:
    """And the advice works."""
    command = ["topology", "show", *words.split(), "--boxes", "4"]
    done = run(*command)
    assert done.code == 2
    assert f"`{advice}`" in done.err
    assert run(*command, *advice.split()).code == 0


def test_trees_that_are_not_there_are_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert run("plan", "star", "--set", "gpus=4", "-c", "all_gather", "-o", path).code == 0
    for more in ((), ("--json",)):
        done = run("explain", path, "--tree", "99999", *more)
        assert (done.code, done.out) == (2, "")
        assert "expected a tree of 0 .. 3, found 99999: name one of these (`--tree 0`)." in done.err
        assert run("explain", path, "--tree", "3", *more).code == 0
    with pytest.raises(InputError, match=r"expected a tree of 0 \.\. 3, found 4"):
        explain(path).lines(tree=4)
    with pytest.raises(InputError, match=r"made of transfers and has no tree 0 .* leave out `tree`"):
        explain(plan(load("star", gpus=4), "all_gather", algorithm="bruck")).lines(tree=0)


def test_gigabits_are_not_taken_for_gigabytes(run: Run, tmp_path: Path) -> None:
    done = run("topology", "show", document(tmp_path, {"from": "a", "to": "b", "gbit_per_s": 400}))
    assert done.code == 2
    assert "did you mean 'gb_per_s', in gigabytes per second? Divide gigabits by 8" in done.err
    for key in ("gbit_per_s", "gbps", "Gb_per_s"):
        assert "Divide gigabits by 8" in run("topology", "show", "star", "--set", f"{key}=400").err
    done = run("topology", "show", "star", "--set", "gb_per_sec=400")
    assert "did you mean 'gb_per_s'?" in done.err


def test_advice_against_links_to_oneself_works(run: Run, tmp_path: Path) -> None:
    path = document(tmp_path, {"from": "b", "to": "b", "gb_per_s": 1})
    for words in (("show", path), ("compose", f"2x{path}", "--port-rate", "1")):
        refused = run("topology", *words)
        assert refused.code == 2
        found = re.search("`(--[a-z-]*set) (self_links=drop)`", refused.err)
        assert found is not None
        done = run("topology", *words, *found.groups())
        assert (done.code, done.err) == (0, "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(path, self_links="drop").num_links == 2


def test_what_stands_in_another_file_has_no_options(run: Run, tmp_path: Path) -> None:
    """So that such advice would lead nowhere."""
    inner = json.loads(document(tmp_path, {"from": "b", "to": "b", "gb_per_s": 1}).read_text())
    cluster = {"format": "coppice-cluster", "version": 1, "hosts": [{"name": "h", "topology": inner}]}
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(cluster))
    done = run("topology", "show", path)
    assert done.code == 2
    assert done.err.endswith("leads from 'b' to itself: remove it.\n")


@pytest.mark.parametrize(
    ("topology", "name", "meant"),
    [
        ("dgx-a100", "box1/nic9", "box1/nic7"),
        ("dgx-a100", "box2/nic0", "box0/nic0"),
        ("dgx-a100", "box1/nics0", "box1/nic0"),
        ("dgx-a100", "box0/gpu8", "box0/gpu7"),
        ("dgx-a100", "box1/nvswich", "box1/nvswitch"),
        ("dgx-a100", "rial1", "rail1"),
        ("mi100", "box1/hca1", "box1/nic1"),
    ],
)
def test_the_nearest_node_is_of_the_same_kind_and_box(topology: str, name: str, meant: str, run: Run) -> None:
    done = run("topology", "degrade", topology, "--boxes", "2", "--remove", name)
    assert done.code == 2
    assert done.err.endswith(f"has no node '{name}': did you mean '{meant}'?\n")
    assert run("topology", "degrade", topology, "--boxes", "2", "--remove", meant).code == 0


def test_folded_nics_are_told(run: Run) -> None:
    """And the advice works."""
    command = ["topology", "degrade", "dgx-h100", "--boxes", "2", "--remove", "box1/nic0"]
    done = run(*command)
    assert done.code == 2
    assert "its NICs are no nodes (presets may have `--set nics=node`): change links of its GPUs." in done.err
    assert run(*command, "--set", "nics=node").code == 0
    assert "`coppice topology show` lists the nodes." in run(*command[:-1], "something").err


def test_nics_have_one_name_over_all_presets() -> None:
    for name, each in PRESETS.items():
        if each.host is not None:
            options = {"nics": "node"} if "nics" in {entry.name for entry in each.parameters} else {}
            made = load(name, boxes=2, **options)
            nics = [made.node_ids[v] for v in np.flatnonzero(made.kind == NodeKind.NIC)]
            count = len(nics) // 2
            assert nics == [f"box{box}/nic{i}" for box in range(2) for i in range(count)]


def test_former_names_of_nics_are_found_and_files_with_them_read(run: Run, tmp_path: Path) -> None:
    """DGX A100 once had mlx5_0 to mlx5_7."""
    words = ("topology", "degrade", "dgx-a100", "--boxes", "2", "--remove")
    assert run(*words, "box1/mlx5_3").out == run(*words, "box1/nic3").out
    path = tmp_path / "former.json"
    text = run("topology", "import", "dgx-a100", "--boxes", "2").out.replace("/nic", "/mlx5_")
    path.write_text(text)
    assert "box1/mlx5_3" in load(path).node_ids
    done = run("topology", "degrade", path, "--remove", "box1/nic3")
    assert "did you mean 'box1/mlx5_3'?" in done.err
    assert run("topology", "degrade", path, "--remove", "box1/mlx5_3").code == 0
    assert run("plan", path, "-c", "all_gather", "-o", tmp_path / "plan.json").code == 0
    assert run("verify", tmp_path / "plan.json").code == 0
