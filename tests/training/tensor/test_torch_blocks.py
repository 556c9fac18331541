"""Tensor-parallel blocks under policies in real processes: the weights of plain training, in the policy's order."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.data_parallel.test_torch_overlap import LIKE, run

pytest.importorskip("torch", reason="torch is not installed")


PROGRAM = "blocks_ranks.py"


def check_halves(found: dict, others: list[dict]) -> None:
    whole = found.pop("whole")
    assert whole["compared"] == 12
    assert max(whole["losses"], whole["distance"]) < LIKE
    for name, outcome in found.items():
        if "tied" in name:  # a tensor of two parts: four terms, added in another order
            assert outcome["distance"] < LIKE, name
        else:
            assert outcome["distance"] == 0.0, name
            assert outcome["losses"], name
        left_out = outcome["unneeded"]
        assert outcome["launched"] == [each for each in outcome["simulated"] if each not in left_out], name
        assert all(other[name]["launched"] == outcome["launched"] for other in others), name
        assert outcome["keys"], name


def check_half_features(found: dict, size: int) -> None:
    assert all(found["mixed"])
    for name, sums in (("bottom", [14, 14]), ("all but a norm", [14, 14])):
        assert all(found[name]["equal"]), name
        assert found[name]["sums"] == sums, name
    assert found["sums"] == [8, 8]  # none where parts are computed again
    assert found["fired"]
    # What enters every part but the last, and its sum; and the mask of what follows the last sum.
    assert found["saved"] == found["activation"] * (2 * 3 + 1)
    # Of what is kept otherwise, much is split over the ranks.
    assert found["saved"] < found["all saved"] / (4 if size == 2 else 3)
    assert found["predicted"] > 0
    assert found["evaluated"] < LIKE
    assert found["resumed"] == 0.0
    said = found["refused"]
    assert "expected one backward pass for a forward pass" in said[0]
    assert "expected `silent=True`" in said[1]
    assert "found Linear in block 0" in said[2]
    assert "expected 1 block or more" in said[3]
    assert "found 'centauri'" in said[4]
    assert "expected a micro-batch of 2 sequences or more" in said[5]
    assert "train some iterations first" in said[6]
    assert "found heads=4, hidden=60 and width=15" in said[7]


def check_windows(launched: list[str], places: list[list[int]], operations: list[list[str]]) -> int:
    """Every operation runs where its place is, and nowhere else; how many ran beside sums."""
    count, windows = len(places), len({name.split(".")[0] for name in operations[0]})
    early = 0
    for number, place in enumerate(places):
        for name, at in zip(operations[number], place, strict=True):
            found = [
                each for each in launched if each in (f"{name} of {number}", f"{name} of {number} early")
            ]
            if at == -1:
                assert not found
            elif at >= windows * (count - number):
                assert found in ([f"{name} of {number}"], []), (name, number)
                if found:
                    assert launched.index(found[0]) < launched.index(f"B{number} part 0")
            elif found:
                assert found == [f"{name} of {number} early"]
                when = f"F{count - 1}" if at < windows else f"B{count - at // windows}"
                sums = f"sum {at % windows} of {when}"
                assert launched.index(sums) < launched.index(found[0]) < launched.index(f"waited {sums}")
                early += 1
    return early


def check_order(outcome: dict, launched: list[str], *, unneeded: tuple[str, ...] = ()) -> None:
    """The order is the simulated one; what nothing takes may be left out, and ``unneeded`` sums."""
    ran = [each for each in launched if not each.startswith("waited")]
    names = {f"{name} of {at}" for at, names in enumerate(outcome["operations"]) for name in names}
    simulated = [
        each
        for each in outcome["simulated"]
        if each in ran or (each not in unneeded and each.removesuffix(" early") not in names)
    ]
    assert ran == simulated


def check_recomputed(found: dict, others: list[dict]) -> None:
    early = 0
    for name, outcome in found.items():
        kind = name.rsplit(" ", 1)[0]
        assert outcome["distance"] == 0.0, name
        assert outcome["losses"], name
        assert outcome["keys"], name
        check_order(outcome, outcome["launched"], unneeded=("sum 0 of B0",) if "own" in kind else ())
        early += check_windows(outcome["launched"], outcome["windows"], outcome["operations"])
        counted, there = outcome["held"]
        kept, peak = outcome["planned"]
        assert counted == there, name
        assert counted <= kept, name
        if kind == "plain":  # all that is computed again is taken there, and all that is planned is kept
            assert [each for each in outcome["launched"] if "waited" not in each] == outcome["simulated"]
            assert counted == kept, name
        assert peak <= (outcome["limit"] or peak), name
        if "recorded" not in name:  # times are measured
            assert all(other[name]["launched"] == outcome["launched"] for other in others), name
    assert early > 20
    held = [outcome["held"][0] for name, outcome in found.items() if name.startswith("plain ")]
    assert held[2] < held[3] < held[4] < held[5] > 2 * held[2]


def check_recomputed_features(found: dict) -> None:
    assert all(found["measured"])
    for search in ("layer", "stage"):
        outcome = found[f"in flight {search}"]
        assert all(outcome["equal"]), search
        assert len(outcome["launched"]) == 3
        for launched in outcome["launched"]:
            check_order(outcome, launched)
            assert check_windows(launched, outcome["windows"], outcome["operations"]) > 0
        again = [each for each in outcome["launched"][0] if each.endswith(" of 2 early")]
        assert again  # in the forward pass of another micro-batch
        held, peak, limit = outcome["planned"]
        assert held <= peak <= limit
    for name in ("mixed", "bottom", "most"):
        assert all(found[name]), name
    assert found["resumed"] == 0.0
    assert found["evaluated"]
    assert found["let go"]
    said = found["refused"]
    for each, expected in zip(
        said,
        (
            "expected `limit_bytes` of",
            "expected `limit_bytes` of",
            "expected at most 1 micro-batches between forward and backward passes",
            "expected micro-batches of 480 elements or fewer",
            "expected one backward pass for a forward pass",
            "expected operation 0.partial.0 to do the same when it is computed again",
            "expected blocks of 2 parts",
            "expected no `layer_bytes`",
            "expected 1 or more micro-batches in flight",
            "expected",
        ),
        strict=True,
    ):
        assert each.startswith(expected), said


@pytest.mark.parametrize(
    ("size", "backend"),
    [
        (2, "gloo"),
        pytest.param(4, "gloo", marks=pytest.mark.slow),
        pytest.param(2, "coppice", marks=pytest.mark.slow),
    ],
)
def test_blocks_under_policies_train_as_plain_ones(size: int, backend: str, tmp_path: Path) -> None:
    outcomes = run("quick", size, tmp_path, backend=backend, program=PROGRAM)
    for rank, found in outcomes.items():
        others = [other for each, other in outcomes.items() if each != rank]
        check_halves(dict(found["halves"]), [other["halves"] for other in others])
        check_half_features(found["half features"], size)
        check_recomputed(found["recomputed"], [other["recomputed"] for other in others])
        check_recomputed_features(found["recomputed features"])


def check_tracked(found: dict) -> None:
    for name in ("even", "uneven", "whole numbers", "one tile"):
        outcome = found[name]
        assert outcome["error"] <= {"whole numbers": 0.0, "even": 1e-13}.get(name, 1e-5), name
        assert outcome["same"], name
        assert outcome["rightly"], name
        assert outcome["products"] == outcome["simulated"], name
        assert all(outcome["hops"]), name
        assert outcome["counts"] == outcome["expected"], name
    assert found["beside"]
    assert all(passed >= 4 + 2 * (step - 1) for step, passed in found["beside"] if step)
    early, late = found["injured"]
    assert early == "False"
    assert "expected all updates of a product within 0.5 s" in late
    assert found["left"] == "" or "of its group has ended" in found["left"]
    said = found["refused"]
    assert "expected rows for each of" in said[0]
    assert "expected 1 or more rows and columns" in said[1]
    assert "expected operands of a" in said[2]
    assert "of torch.float64" in said[3]


@pytest.mark.parametrize("policy", ["oases", pytest.param("lynx", marks=pytest.mark.slow)])
def test_a_killed_rank_ends_the_others_with_an_error(policy: str, tmp_path: Path) -> None:
    (tmp_path / policy).touch()
    found = run("killed", 3, tmp_path, dies=1, program=PROGRAM)
    for outcome in found.values():
        assert "expected all ranks to sum activations, found one that does not answer" in outcome["said"]
        assert "expected all ranks to sum activations" in outcome["then"]
        assert (
            "expected all ranks of a tracked product, found that rank 1 of its group has ended"
            in outcome["at last"]
        )
        check_tracked(outcome["tracked"])


@pytest.mark.slow
@pytest.mark.parametrize(("size", "backend"), [(4, "gloo"), (2, "gloo"), (3, "coppice")])
def test_stores_of_a_product_trigger_its_scatter(size: int, backend: str, tmp_path: Path) -> None:
    for found in run("tracked", size, tmp_path, backend=backend, program=PROGRAM).values():
        check_tracked(found["tracked"])


DEGREES = "degrees_ranks.py"


def check_degrees(found: dict, others: list[dict]) -> None:
    said = found.pop("refused")
    for place, words in enumerate(
        (
            "expected degrees that divide each other",
            "found 7",
            "replicas divide, found",
            "expected parts of one degree without `groups`",
            "build it with `group=groups.of(degree)`",
            "expected parts of one degree where they share a parameter",
            "groups of 1 ranks divide, found",
        )
    ):
        assert words in said[place], said[place]
    assert sorted(found["planned"]["degrees"]) == [1, 1, 2, 2]
    for name, outcome in found.items():
        assert max(outcome["losses"], outcome["distance"], outcome["evaluated"]) < LIKE, name
        assert outcome["compared"] >= 0.4, name
        assert outcome["resumed"] == 0.0, name
        assert outcome["launched"] == outcome["simulated"], name
        assert any(each.startswith("regroup before B") for each in outcome["launched"]), name
        assert all(other[name]["launched"] == outcome["launched"] for other in others), name
        assert outcome["keys"], name
        assert outcome["predicted"] > 0, name


@pytest.mark.parametrize(
    ("size", "backend"),
    [
        (2, "gloo"),
        pytest.param(4, "gloo", marks=pytest.mark.slow),
        pytest.param(2, "coppice", marks=pytest.mark.slow),
    ],
)
def test_blocks_of_several_degrees_train_as_one_process_would(
    size: int, backend: str, tmp_path: Path
) -> None:
    outcomes = run("quick", size, tmp_path, backend=backend, program=DEGREES)
    for rank, found in outcomes.items():
        check_degrees(dict(found), [other for each, other in outcomes.items() if each != rank])


def test_a_killed_rank_of_a_degree_ends_the_others(tmp_path: Path) -> None:
    for outcome in run("killed", 3, tmp_path, dies=1, program=DEGREES).values():
        blocks, optimizer, regrouped = outcome["said"]
        assert "expected all ranks to sum activations, found one that does not answer" in blocks
        assert "expected all ranks to update their slices, found one that does not" in optimizer
        assert "expected all ranks to sum activations, found one that does not answer" in regrouped
        assert outcome["launched"][-1] == "regroup before F1"
