"""A comparison on Dask's local cluster, as docs/executors.md shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from comparison.cases import star
from coppice.comparison import compare

distributed = pytest.importorskip("distributed", reason="dask is not installed: pip install 'coppice[dask]'")

SIZES = (2**10, 2**20)
NAMES = ["forest", "ring", "recursive-doubling"]


@pytest.mark.filterwarnings("default")  # Dask's own
def test_same_outcome_on_a_dask_cluster(tmp_path: Path) -> None:
    alone = compare(star(), sizes=SIZES, algorithms=NAMES, jobs=1)
    path = tmp_path / "results.jsonl"
    seen: list[int] = []
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=None,
            local_directory=str(tmp_path / "dask"),
        ) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as executor,
    ):
        found = compare(
            star(),
            sizes=SIZES,
            algorithms=NAMES,
            executor=executor,
            results=path,
            on_progress=lambda done, *_: seen.append(done),
        )
        used = client.run(lambda: "coppice" in __import__("sys").modules)
    assert found.record() == alone.record()
    assert len(used) == 2
    assert any(used.values())
    assert seen == list(range(1, len(seen) + 1))
    # What the cluster measured, this process need not.
    again = compare(
        star(),
        sizes=SIZES,
        algorithms=NAMES,
        jobs=1,
        results=path,
        on_progress=lambda *_: pytest.fail("it measured again"),
    )
    assert again.record() == alone.record()
