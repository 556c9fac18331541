"""Times of collectives given to torch's scheduler of overlap: it reads them, and places collectives by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coppice.iteration.costs.calibrated import costs_of
from coppice.iteration.costs.group import RankGroup
from coppice.iteration.costs.profile import groups_of
from coppice.iteration.layout import Layout
from coppice.iteration.machine import cluster_of
from coppice.topology.presets import preset
from support.pages import coppice
from support.rank_processes import rank_codes

pytest.importorskip("torch", reason="torch is not installed")
guided = pytest.importorskip(
    "torch._inductor.fx_passes.profile_guided_estimation",
    reason="this torch has no estimates from profiles, or keeps them elsewhere",
)

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "overlap_estimates.py"
SLOW = "--topology star --set gpus=16 --set gb_per_s=0.05 --device A100-80G --parallel dp=16"
FAST = "--topology dgx-a100 --boxes 2 --parallel dp=16"


def profile(words: str, file: Path, *, batch: int = 16) -> dict[str, Any]:
    """What the command says of the profile that it writes."""
    done = coppice(*f"train torch-profile llama3-8b {words} --global-batch {batch} --json -o {file}".split())
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_slow_gathers_are_placed_one_behind_a_product(tmp_path: Path) -> None:
    """Torch's own estimates hide all gathers behind the first product; on a slow network a product hides none whole."""
    profile(SLOW, tmp_path / "slow.json")
    profile(FAST, tmp_path / "fast.json")
    files = [str(tmp_path / name) for name in ("found.json", "slow.json", "fast.json")]
    log = tmp_path / "errors"
    assert rank_codes(PROGRAM, [files], [log]) == [0], log.read_text()[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    orders = "\n".join(f"{name}: {' '.join(found[name])}" for name in ("traced", "torch", "slow", "fast"))
    pair = ["gather", "product", "wait"]
    assert found["torch"][:6] == ["gather", "wait", "gather", "gather", "gather", "product"], orders
    assert found["slow"] == ["gather", "wait", *3 * pair, "product"], orders
    assert found["fast"] == found["torch"], orders
    assert found["function"] == found["slow"], orders
    for own, by_profile, by_function, latency in found["milliseconds"]:
        assert by_profile == pytest.approx(by_function)
        assert by_profile > 20 * own
        assert 0 < latency < by_function


@pytest.mark.parametrize("width", [4, 2])
def test_torch_finds_our_costs_at_all_sizes_and_for_all_groups(width: int, tmp_path: Path) -> None:
    words = "--topology dgx-a100 --boxes 4 --parallel tp=4,pp=2,dp=4"
    said = profile(words, tmp_path / "given.json")
    assert said["groups"] == [{"ranks": 4, "stride": 1}, {"ranks": 4, "stride": 4}]
    assert said["model"] == "calibrated"
    data = guided.ProfileData()
    data.load(str(tmp_path / "given.json"))
    costs = costs_of(cluster_of(preset("dgx-a100", boxes=4)))
    kind = {4: "Float", 2: "BFloat16"}[width]
    names = {
        "all_gather_into_tensor": ("all_gather", 1),
        "all_gather_into_tensor_out": ("all_gather", 1),
        "reduce_scatter_tensor": ("reduce_scatter", 4),
        "all_reduce": ("all_reduce", 1),
        "all_to_all_single": ("all_to_all", 1),
    }
    for stride, gradients in ((1, False), (4, True)):
        group = RankGroup(4, stride)
        for ranks in group.members(32):
            for target, (name, times) in names.items():
                for elements in (1, 3, 1024, 99_999, 2**20, 3 * 2**25, 5 * 2**30):
                    milliseconds, source = data.lookup_collective(target, tuple(ranks), elements, kind)
                    sums = gradients and name != "all_to_all"
                    exact = costs.cost(name, elements * width * times, group, gradients=sums).seconds
                    assert source == "profile"
                    assert milliseconds == pytest.approx(1e3 * exact, rel=0.03), (target, ranks, elements)


def test_groups_of_experts_and_of_contexts_have_times_of_their_own() -> None:
    found = groups_of(Layout(tensor=2, context=2, data=4, expert=4, global_batch=4))
    apart = {(2, 1): False, (2, 2): False, (4, 2): False, (4, 4): True, (8, 2): True, (2, 8): True}
    assert {(group.ranks, group.stride): gradients for group, gradients in found.items()} == apart


def test_times_of_simulated_collectives_name_their_model(tmp_path: Path) -> None:
    words = "--topology star --set gpus=2 --device A100-80G --parallel dp=2 --collectives ring"
    said = profile(words, tmp_path / "given.json")
    assert (said["collectives"], said["model"]) == ("ring", "nccl-2.30")


def test_a_job_without_groups_is_refused(tmp_path: Path) -> None:
    words = "train torch-profile llama3-8b --topology dgx-a100 --parallel pp=8 --global-batch 8"
    done = coppice(*words.split(), "-o", str(tmp_path / "given.json"))
    assert done.exit_code == 2
    assert "expected groups that exchange something" in done.output
    assert not list(tmp_path.iterdir())
