"""Parameter servers in processes of their own: P3's slices, TicTac's pulls, beside the same training in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from training.test_torch_overlap import LIKE, run


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_servers_train_as_one_process_would(size: int, tmp_path: Path) -> None:
    outcomes = run("killed", size, tmp_path, dies=1, program="servers_ranks.py")
    for outcome in outcomes.values():
        assert len(outcome["served"]) == 4
        for name, found in outcome["served"].items():
            # sums in the order of the workers, but of the recorded iterations, which are all-reduces
            like = 0.0 if size == 2 else LIKE if name in ("p3 0", "tictac 2") else 10 * LIKE
            assert max(found["distance"], found["states"], found["resumed"]) <= like, name
            assert found["ordered"], name
            assert found["carrier"] == "ServerCarrier"
            assert found["messages"] > 6
        said = outcome["refused"]
        assert "found policy priority, which is not p3" in said[0]
        assert "found policy p3, which is not p3 (with `transport=" in said[1]
        assert "found `tune` in training" in said[2]
        assert "found `unused=True`" in said[3]
        assert "expected an address like 10.0.0.5:7000, found 'nowhere'" in said[4]
        assert "one or more different addresses" in said[5]
        assert "expected gradients to be left to servers" in said[6]
        assert "found lr changed from 0.05 to 0.5" in said[7]
        assert " is gone" in outcome["server"]
        assert " gone" in outcome["worker"]
        assert any("found worker 1 gone" in each for each in outcome["said"])
