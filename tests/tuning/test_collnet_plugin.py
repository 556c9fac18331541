"""The network plugin on NCCL's side of every version: right sums, calls in flight, lost nodes, files of trees."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coppice.tuning.building import compiler_found

HERE = Path(__file__).parent
ALL = [12, 11, 10, 9, 8]
REMOTE, INVALID_ARGUMENT, INVALID_USAGE = 6, 4, 5

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the plugin is for Linux, as NCCL is"),
    pytest.mark.skipif(
        compiler_found(language="C++20") is None,
        reason="the plugin is C++, and there is no compiler here: install one or set CXX",
    ),
]


def play(library: Path, job: str, nodes: int, **given: Any) -> list[dict[str, Any]]:
    """What each node tells of a job."""
    record = {"library": str(library), "job": job, "nodes": nodes, "seed": 1, "newest": [12], **given}
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("NCCL_", "COPPICE_"))
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "collnet_nodes.py"), json.dumps(record)],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "COPPICE_SOCKET_IFNAME": "lo", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout)
    return [{**each, "stderr": done.stderr} for each in told]


@pytest.mark.parametrize("nodes", [2, 8])
def test_every_version_gives_right_results_with_calls_in_flight(library: Path, nodes: int) -> None:
    told = play(library, "random", nodes, newest=ALL, seed=nodes, calls=12, flying=5, largest=120_000)
    assert [each.get("versions") for each in told] == [ALL] * nodes, told[0]["stderr"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_calls(library: Path, seed: int) -> None:
    nodes = 2 + seed % 7
    told = play(library, "random", nodes, newest=ALL, seed=seed, calls=150, flying=8, largest=400_000)
    assert [each.get("versions") for each in told] == [ALL] * nodes, told[0]["stderr"]


def test_cores_of_any_age_find_their_version(library: Path) -> None:
    told = play(library, "random", 2, newest=[99, 10, 8], calls=1, flying=0, largest=1)
    assert [each["versions"] for each in told] == [[12, 10, 8]] * 2


@pytest.mark.parametrize(("job", "victim"), [("killed", 0), ("killed", 3), ("silent", 1)])
def test_a_killed_node_is_an_error_and_one_sentence_everywhere(library: Path, job: str, victim: int) -> None:
    told = play(library, job, 5, victim=victim, dies_at=3, largest=200_000, newest=[8 + victim])
    for node, each in enumerate(told):
        if node == victim:
            assert each["status"] == -9
            continue
        assert each["codes"] == [REMOTE, REMOTE], each
        lost = [line for line in each["warnings"] if "gives up" in line]
        assert len(lost) == 1
        assert re.fullmatch(rf"node {node} gives up: .*node \d.* in all-reduce \d+", lost[0])
    assert any(f"node {victim}" in line for each in told for line in each.get("warnings", ()))


def test_calls_in_another_order_are_refused(library: Path) -> None:
    told = play(library, "out_of_order", 3)
    assert INVALID_USAGE in [each["code"] for each in told]
    assert all(each["code"] in (INVALID_USAGE, REMOTE) for each in told)
    assert "call alike in the same order" in str([each["warnings"] for each in told])


def test_messages_of_the_plain_network(library: Path) -> None:
    told = play(library, "messages", 2, newest=ALL, calls=12)
    assert all("status" not in each for each in told), told[0]["stderr"]


def joined(library: Path, *environments: dict[str, str]) -> list[dict[str, Any]]:
    return play(library, "joined", len(environments), environment=environments)


def test_a_forest_is_taken_from_its_file(library: Path, tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.write_text("coppice-collnet 1\nnodes 3\ntree 2 -1 0 1\ntree 1 1 2 -1\n")
    other.write_text("coppice-collnet 1\nnodes 3\ntree 1 -1 0 0\ntree 1 1 2 -1\n")
    use = [{"COPPICE_COLLNET_FOREST": str(path)} for path in (own, own, other)]
    told = joined(library, use[0], use[0], use[0])
    assert [each["code"] for each in told] == [0, 0, 0]
    assert "joined by 2 trees (COPPICE_COLLNET_FOREST" in str(told[0]["log"])
    for order in itertools.permutations(use):
        told = joined(library, *order)
        assert all(each["code"] in (INVALID_USAGE, REMOTE) for each in told), (
            "all fail, as NCCL does not ask around"
        )
        assert "the same COPPICE_COLLNET_FOREST" in str([each["log"] for each in told])
    told = joined(library, use[0], use[0])
    assert [each["code"] for each in told] == [0, 0]
    assert "is for 3 nodes, not 2: balanced trees instead" in str(told[0]["log"])


def test_results_along_trees_of_a_file(library: Path, tmp_path: Path) -> None:
    """Blocks of nodes that are the root of no tree go along trees turned to them, several on one at a time."""
    forest = tmp_path / "forest"
    forest.write_text("coppice-collnet 1\nnodes 6\ntree 2 -1 0 0 1 1 2\ntree 1 1 2 3 -1 3 4\n")
    told = play(library, "random", 6, calls=24, flying=8, largest=200_000, forest=str(forest), seed=5)
    assert [each.get("versions") for each in told] == [[12]] * 6, told[0]["stderr"]


def test_a_bad_file_turns_the_network_off(library: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text("coppice-collnet 1\nnodes 2\ntree 1 -1 -1\n")
    for path in (bad, tmp_path / "none"):
        told = play(library, "refused", 1, forest=str(path))
        assert told[0]["code"] == INVALID_ARGUMENT
        assert str(path) in str(told[0]["log"])
    assert "bad:3: expected one root (-1), found several" in str(
        play(library, "refused", 1, forest=str(bad))[0]["log"]
    )


def test_it_needs_nothing_but_the_system(library: Path) -> None:
    found = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0].split("/")[-1].split(".so")[0] for line in found.splitlines()}
    assert names <= {
        *("linux-vdso", "libc", "libm", "libstdc++", "libgcc_s", "libpthread", "ld-linux-x86-64"),
        "ld-linux-aarch64",
    }
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    )
    symbols = {line.split()[-1] for line in shown.stdout.splitlines()}
    assert symbols == {f"nccl{kind}Plugin_v{version}" for kind in ("Net", "CollNet") for version in ALL}


@pytest.mark.skipif(
    "COPPICE_NCCL_SOURCE" not in os.environ,
    reason="COPPICE_NCCL_SOURCE names no clone of NVIDIA/nccl (2.30 or later)",
)
def test_tables_lie_as_in_the_headers_of_nccl(tmp_path: Path) -> None:
    source = Path(os.environ["COPPICE_NCCL_SOURCE"]) / "src"
    header = re.sub(r"\$\{nccl:\w+\}", "2", (source / "nccl.h.in").read_text())
    (tmp_path / "nccl.h").write_text(header)
    for name in ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"):
        (tmp_path / name).touch()
    (tmp_path / "cuda_runtime.h").write_text(
        "#include <stddef.h>\n#include <stdint.h>\ntypedef struct CUstream_st* cudaStream_t;\n"
    )
    done = subprocess.run(
        [
            *(compiler_found(language="C++17") or ()),
            *("-std=c++17", "-fsyntax-only", "-Wno-invalid-offsetof"),
            *(f"-I{each}" for each in (tmp_path, source / "include", HERE.parents[1] / "cpp")),
            str(HERE / "nccl_layouts.cc"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
