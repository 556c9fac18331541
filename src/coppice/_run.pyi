"""Types of the native executors: ranks in shared memory, programs of puts and signals."""

import numpy as np
from numpy.typing import NDArray

SHM_LAYOUT: int

class ShmProgram:
    def __init__(
        self,
        rank: int,
        ranks: int,
        input_elements: int,
        output_elements: int,
        scratch_elements: int,
        kind: NDArray[np.int8],
        peer: NDArray[np.int32],
        tag: NDArray[np.int32],
        place: NDArray[np.int8],
        offset: NDArray[np.int64],
        length: NDArray[np.int64],
        source: NDArray[np.int8],
        source_offset: NDArray[np.int64],
        needs_start: NDArray[np.int64],
        needs: NDArray[np.int32],
        /,
    ) -> None: ...

class ShmRank:
    @property
    def ranks(self) -> int: ...
    @property
    def path(self) -> str: ...
    def unlink(self) -> None: ...
    def leave(self) -> None: ...
    def give_up(self) -> None: ...
    def run_program(
        self,
        program: ShmProgram,
        input: int,  # noqa: A002
        output: int,
        scratch_bytes: int,
        result_offset: int,
        result_elements: int,
        type: int,  # noqa: A002
        op: int,
        run: int,
        timeout_s: float,
        /,
    ) -> tuple[int, int, int] | None: ...
    def run_direct(
        self,
        collective: int,
        input: int,  # noqa: A002
        output: int,
        bounds: NDArray[np.int64],
        type: int,  # noqa: A002
        op: int,
        root: int,
        timeout_s: float,
        /,
    ) -> tuple[int, int, int] | None: ...

def shm_create(
    path: str, ranks: int, host: int, slot_bytes: int, slots: int, ring_bytes: int, /
) -> ShmRank: ...
def shm_open(path: str, rank: int, ranks: int, host: int, /) -> ShmRank: ...
def shm_threads(ranks: int, slot_bytes: int, slots: int, ring_bytes: int, /) -> list[ShmRank]: ...

class PutSignalRuns:
    def __init__(
        self,
        *,
        num_slots: int,
        rank_start: NDArray[np.int64],
        call_start: NDArray[np.int64],
        stream: NDArray[np.int64],
        communicator: NDArray[np.int64],
        act: NDArray[np.int64],
        peer: NDArray[np.int64],
        context: NDArray[np.int64],
        signal: NDArray[np.int64],
        count: NDArray[np.int64],
        source: NDArray[np.int64],
        addend: NDArray[np.int64],
        target: NDArray[np.int64],
        words: int,
        begin: NDArray[np.uint64],
        output: NDArray[np.int64],
        wanted_start: NDArray[np.int64],
        wanted: NDArray[np.uint64],
    ) -> None: ...
    def run(self, first: int, count: int) -> tuple[int, int, int, int, int, int]: ...
    def trace(
        self, number: int
    ) -> tuple[int, int, int, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]: ...
