"""The canary: nothing is found where data come before their signals, and every put whose data do not is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from coppice.errors import CheckError
from coppice.run.engines.put_signal.device import Put
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.probe.arrivals import check_arrivals
from support.twin_groups import on_twin


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_data_are_there_when_the_wait_is_over(ranks: int) -> None:
    found = on_twin(lambda engine: check_arrivals(engine, rounds=3, num_bytes=4096), ranks=ranks)
    assert found == [3 * (ranks - 1) * ranks] * ranks


@pytest.mark.parametrize(("rank", "late", "missing"), [(0, 2, 4096), (1, 5, 1), (1, 0, 100)])
def test_data_that_come_late_are_found_on_every_rank(rank: int, late: int, missing: int) -> None:
    """One put of one rank signals before its last bytes are there."""

    def look(engine: PutSignalEngine) -> Any:
        if engine.rank == rank:
            whole, count = engine.device.transfer, -1  # its warm-up comes first

            def transfer(communicator: int, stream: int, puts: Sequence[Put]) -> None:
                nonlocal count
                if puts[0].num_bytes:
                    count += 1
                cut = missing if count == late and puts[0].num_bytes else 0
                whole(communicator, stream, [replace(put, num_bytes=put.num_bytes - cut) for put in puts])

            engine.device.transfer = transfer  # type: ignore[method-assign]
        try:
            return check_arrivals(engine, rounds=6, num_bytes=4096)
        except CheckError as error:
            return str(error)

    for told in on_twin(look, ranks=2):
        assert f"found {missing} of 4096 bytes still old at rank {1 - rank}, from rank {rank}" in told, told
        assert "1 put of 12" in told
