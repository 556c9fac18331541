"""docs/clusters.md is what the program finds, and docs/comparison.md shows what it prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from coppice import Collective
from support.benchmark_scripts import load_benchmark
from support.pages import Example, blocks, coppice, examples


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_benchmark("clusters", folder="docs")


def test_clusters_have_32_to_64_ranks(script: ModuleType) -> None:
    assert len(script.clusters()) == 8
    for cluster in script.clusters():
        assert 32 <= cluster.topology.num_ranks <= 64


def test_page_has_all_rows(script: ModuleType) -> None:
    text = script.PAGE.read_text()
    for cluster in script.clusters():
        section = text.split(f"## {cluster.title}\n")[1].split("\n## ")[0]
        assert f"`coppice compare {cluster.command}`" in section
        for collective in script.COLLECTIVES:
            for size in ("1K", "1M", "64M", "1G"):
                assert section.count(f"\n| {collective} | {size} | ") == 1


@pytest.mark.slow
def test_one_cluster_is_current(script: ModuleType) -> None:
    cluster = next(each for each in script.clusters() if each.name == "h100")
    fresh = script.section(cluster, collectives=(Collective.ALL_GATHER, Collective.ALL_TO_ALL))
    stale = set(fresh.splitlines()) - set(script.PAGE.read_text().splitlines())
    assert not stale, "docs/clusters.md is stale: run `python docs/clusters.py`"


@pytest.mark.slow
def test_link_latency_slows_small_messages(script: ModuleType) -> None:
    cluster = next(each for each in script.clusters() if each.name == "h100")
    slow = script.section(cluster, link_latency_us=5.0, collectives=(Collective.ALL_GATHER,))
    (row,) = (line for line in slow.splitlines() if line.startswith("| all_gather | 1K"))
    assert float(row.split("|")[4]) > 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_page_is_current(script: ModuleType) -> None:
    done = subprocess.run(
        [sys.executable, script.PAGE.with_suffix(".py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, f"docs/clusters.md is stale: run `python docs/clusters.py`. {done.stderr}"


def check(example: Example) -> None:
    done = coppice(*example.words, "--jobs", "1")
    assert done.exit_code == 0, done.output
    assert done.stdout == example.shown


def test_comparison_page_shows_what_is_printed() -> None:
    """The first example runs here; the second, the gain, is the slow test below."""
    check(examples("comparison.md")[0])


@pytest.mark.slow
def test_gain_on_the_page_is_current() -> None:
    check(examples("comparison.md")[1])


def test_scripts_of_the_executors_page_run(tmp_path: Path) -> None:
    """The first script as it stands, on a smaller problem and with fewer sizes."""
    script = blocks("executors.md", "python")[0].text
    small = script.replace("range(10, 33)", "(10, 20)").replace('"dgx-h100", boxes=4', '"dgx-a100", boxes=1')
    (tmp_path / "sweep.py").write_text(small)
    done = subprocess.run(
        [sys.executable, "sweep.py"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert "of the limit at 1M" in done.stdout
    assert (tmp_path / "all_reduce.jsonl").exists()
