"""Training loops as they are written in practice: unused parameters, GradScaler, autocast, weights read in any way."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from training.test_torch_overlap import LIKE, run


@pytest.mark.parametrize(
    ("size", "backend"),
    [
        (2, "gloo"),
        pytest.param(4, "gloo", marks=pytest.mark.slow),
        pytest.param(3, "coppice", marks=pytest.mark.slow),
    ],
)
def test_loops_train_as_with_distributed_data_parallel(size: int, backend: str, tmp_path: Path) -> None:
    outcomes = run("loops", size, tmp_path, backend=backend, program="loops_ranks.py")
    # two terms have one sum, in whatever order; factors are multiplied anew
    like = 0.0 if size == 2 else 2e-5
    for outcome in outcomes.values():
        assert len(outcome["unused"]) == 8
        for name, found in outcome["unused"].items():
            assert found["distance"] <= (like or 2e-5 if name == "poseidon" else like), name
            assert found["read"] <= (like or 2e-5 if name == "poseidon" else like), name
            assert found["classes"] == ["Parameter"]
            assert found["states"] == found["their states"] == 10  # none of what is never used
        for name, found in outcome["scaled"].items():
            assert found["distance"] == 0.0, name
            skipped = [step for step in range(1, 20) if found["scales"][step] < found["scales"][step - 1]]
            assert skipped == [3, 9], name
        assert outcome["within_autocast"] <= (LIKE if like else 0.0)
        assert outcome["measured"] > 0
        said = outcome["refused"]
        assert "call optimizer.synchronize() first (before unscale_ and step of a GradScaler too)" in said[0]
        assert "expected finite gradients where parts of them are held back" in said[1]
        assert "expected `unused=False` where chunks are chosen" in said[2]
        assert said[3] == "InputError: expected better luck, found none."
    assert outcomes[0]["refused"][4] == "ZeroDivisionError: by zero"
    failed = (
        "CheckError: expected rank 0 to say how to go on, found that it failed (ZeroDivisionError: by zero)."
    )
    assert all(outcomes[rank]["refused"][4] == failed for rank in range(1, size))
