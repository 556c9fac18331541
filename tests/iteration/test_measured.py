"""Measured devices: the table between its rows, files that cannot be used, and a measurement of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.bounds import Problem, bound
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.iteration.costs.calibrated import CalibratedCosts
from coppice.iteration.costs.group import RankGroup
from coppice.iteration.machine import cluster_of
from coppice.iteration.measured.table import AttentionRow, CopyRow, DeviceTable, MatrixRow, read_device_table
from coppice.topology.model import Topology
from coppice.topology.operations import set_link_rate
from coppice.topology.presets import preset
from support.paths import ROOT

RECORD = {
    "format": "coppice-device",
    "version": 1,
    "name": "NVIDIA H200",
    "matrices": [
        {"m": m, "n": n, "k": n, "dtype": "bfloat16", "tflops_per_s": 700 * m / (m + 500)}
        for m in (64, 1024, 8192)
        for n in (1024, 8192)
    ],
    "copies": [{"bytes": 1 << 20, "bytes_per_second": 2e12}, {"bytes": 1 << 30, "bytes_per_second": 4e12}],
}


def table(**fields: object) -> DeviceTable:
    rows = tuple(MatrixRow(**each) for each in RECORD["matrices"])
    copies = tuple(CopyRow(**each) for each in RECORD["copies"])
    return DeviceTable(**{"name": "x", "matrices": rows, "copies": copies} | fields)


def test_measured_sizes_are_as_measured() -> None:
    found = table()
    for each in found.matrices:
        assert found.matrix_flops(each.m, each.n, each.k) == pytest.approx(1e12 * each.tflops_per_s)
    assert found.copy_rate(1 << 20) == 2e12
    assert found.memory_rate == 4e12
    assert found.attention_flops(1, 1024, 8) == 0.0


@given(m=st.floats(1, 1e6), n=st.floats(1, 1e6), k=st.floats(1, 1e6))
def test_between_rows_no_rate_is_beyond_them(m: float, n: float, k: float) -> None:
    found = table()
    rates = [1e12 * each.tflops_per_s for each in found.matrices]
    assert min(rates) * (1 - 1e-9) <= found.matrix_flops(m, n, k) <= max(rates) * (1 + 1e-9)


def test_attention_has_two_rates() -> None:
    row = AttentionRow(
        sequences=1, seq=1024, heads=8, head_width=64, forward_tflops_per_s=300.0, backward_tflops_per_s=200.0
    )
    found = table(attention=(row,))
    assert found.attention_flops(1, 1024, 8) == 3e14
    assert found.attention_flops(9, 512, 8, backward=True) == 2e14


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "format coppice-device of version 1"),
        ({"matrices": []}, "rows of measured matrices, found none"),
        ({"copies": [{"bytes": 1, "bytes_per_second": 0}]}, r"found otherwise at \$.copies\[0\]"),
        ({"matrices": [{"m": 1, "n": 1}]}, "missing required field"),
        ({"matrixes": []}, "unknown field `matrixes`"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = tmp_path / "device.json"
    path.write_text(json.dumps(RECORD | change))
    with pytest.raises(InputError, match=words):
        read_device_table(path)
    path.write_text(json.dumps(RECORD))
    assert read_device_table(path).name == "NVIDIA H200"


def test_a_measurement_needs_only_torch(tmp_path: Path) -> None:
    """Neither the native core nor any other package that this one needs is loaded."""
    pytest.importorskip("torch")
    path = tmp_path / "cpu.json"
    script = (
        "import sys, runpy\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('msgspec', 'typer', 'rich', 'highspy') or name == 'coppice._core':\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        f"sys.argv = ['x', '--kind', 'cpu', '--seconds', '0', '-o', {str(path)!r}]\n"
        f"runpy.run_path({str(ROOT / 'benchmarks' / 'device_table.py')!r}, run_name='__main__')\n"
    )
    alone = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
    }  # threads that wait for each other take long on a busy machine
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=alone
    )
    assert done.returncode == 0, done.stderr
    found = read_device_table(path)
    assert found.most_flops > 0
    assert len(found.attention) == 2


def check_all_reduce(topology: Topology) -> None:
    costs = CalibratedCosts(cluster_of(topology))
    found = costs.cost("all_reduce", 2**30, RankGroup(topology.num_ranks, 1)).seconds
    assert found >= 2**30 / 1e9 / float(bound(Problem(topology, Collective.ALL_REDUCE)).algbw_gb_per_s)


@pytest.mark.parametrize("boxes", [1, 2, 4])
@pytest.mark.parametrize("name", ["dgx-1v", "dgx-a100", "dgx-a100-pcie", "dgx-h100", "dgx-b200"])
def test_presets(name: str, boxes: int) -> None:
    check_all_reduce(preset(name, boxes=boxes))


def test_a_narrow_fabric_is_reckoned_with_and_said() -> None:
    options = {"fabric": "rail", "hosts_per_leaf": "1", "spines": "1", "oversubscription": "16"}
    narrow = preset("dgx-a100", boxes=4, **options)
    with pytest.warns(
        UserWarning, match=r"send 200 GB/s and the network lets 12\.5 GB/s through between boxes"
    ):
        assert cluster_of(narrow).nic_bytes_per_second == 12.5e9
    with pytest.warns(UserWarning, match="calibrated rings"):
        check_all_reduce(narrow)


def test_one_slow_box_holds_all() -> None:
    slow = preset("dgx-a100", boxes=4)
    for i in range(8):
        slow = set_link_rate(slow, f"box2/nic{i}", f"rail{i % 2}", "10%")
    with pytest.warns(UserWarning, match=r"lets 20 GB/s through"):
        check_all_reduce(slow)
