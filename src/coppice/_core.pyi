"""Types of the native core: arrays in, arrays out."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

def balanced_loads(
    num_nodes: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    cap: NDArray[np.int64],
    targets: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
def balanced_deliveries(
    num_nodes: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    cap: NDArray[np.int64],
    targets: NDArray[np.int32],
    numerator: NDArray[np.int64],
    denominator: NDArray[np.int64],
    pieces: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]: ...
def violated_cuts(
    num_nodes: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    cap: NDArray[np.int64],
    supply: NDArray[np.int64],
    terminal: NDArray[np.bool_],
    demand: int,
    limit: int = 1,
) -> list[NDArray[np.int32]]: ...
def cut_bound(
    num_nodes: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    cap: NDArray[np.int64],
    weight: NDArray[np.int64],
    terminal: NDArray[np.bool_],
) -> tuple[int, int, NDArray[np.int32], int]: ...

class PathFlow:
    def __init__(
        self,
        num_nodes: int,
        src: NDArray[np.int32],
        dst: NDArray[np.int32],
        cap: NDArray[np.int64],
        sources: NDArray[np.int32],
        demand: NDArray[np.int64],
    ) -> None: ...
    def sweep(self, steepness: float) -> None: ...
    def worst(self) -> float: ...
    def lengths(self, steepness: float) -> NDArray[np.float64]: ...
    def bound(self, length: NDArray[np.float64]) -> float: ...
    def paths(
        self,
    ) -> tuple[
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.float64],
        NDArray[np.int64],
        NDArray[np.int32],
    ]: ...

def pack_trees(
    num_nodes: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    cap: NDArray[np.int64],
    roots: NDArray[np.int64],
    terminal: NDArray[np.bool_],
    always_exhaustive: bool = False,
) -> dict[str, Any]: ...
def pack_templates(
    num_nodes: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    cap: NDArray[np.int64],
    roots: NDArray[np.int64],
    terminal: NDArray[np.bool_],
    orders: NDArray[np.int64],
    node_orbit: NDArray[np.int32],
    node_element: NDArray[np.int64],
    link_orbit: NDArray[np.int32],
) -> dict[str, Any]: ...
def find_routes(
    num_nodes: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    cap: NDArray[np.int64],
    forwards: NDArray[np.bool_],
    from_node: NDArray[np.int32],
    to_node: NDArray[np.int32],
    channel: NDArray[np.int64],
    relays: bool,
    hash: int,  # noqa: A002
) -> tuple[NDArray[np.int64], NDArray[np.int32]]: ...
def find_symmetry(
    num_nodes: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    colour: NDArray[np.int32],
    label: NDArray[np.int32],
    compute: NDArray[np.bool_],
) -> tuple[
    NDArray[np.int64],
    list[NDArray[np.int32]],
    NDArray[np.int32],
    NDArray[np.int64],
    NDArray[np.int32],
    NDArray[np.int64],
]: ...
def match_chunks(
    num_ranks: int,
    num_ports: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    duration: NDArray[np.int64],
    port_start: NDArray[np.int64],
    port: NDArray[np.int32],
    hold: NDArray[np.int64],
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    group: NDArray[np.int32],
    rules: NDArray[np.uint8],
    seed: int,
    first: int,
    count: int,
    threads: int,
    limit: int,
    seconds: float,
) -> tuple[int, int, NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]: ...
def simulate_messages(
    route: NDArray[np.int32],
    bytes: NDArray[np.int64],  # noqa: A002
    added: NDArray[np.int64],
    wave: NDArray[np.int32],
    job: NDArray[np.int32],
    due: NDArray[np.float64],
    send_gate: NDArray[np.int32],
    receive_gate: NDArray[np.int32],
    chained: NDArray[np.uint8],
    after_start: NDArray[np.int64],
    after: NDArray[np.int32],
    rate: NDArray[np.float64],
    latency: NDArray[np.float64],
    burst: NDArray[np.float64],
    route_start: NDArray[np.int64],
    route_links: NDArray[np.int32],
    overhead: NDArray[np.float64],
    sender: NDArray[np.int32],
    receiver: NDArray[np.int32],
    num_gpus: int,
    send_occupancy: NDArray[np.float64],
    receive_occupancy: NDArray[np.float64],
    group: NDArray[np.int32],
    buffered: bool,
    workers: int,
    copy_rate: float,
    fair: bool,
    store_and_forward: bool,
    send_engines: int,
    receive_engines: int,
    add_rate: float,
    keep_hops: bool,
    keep_rates: bool,
) -> dict[str, Any]: ...
def run_tasks(
    stream: NDArray[np.int32],
    seconds: NDArray[np.float64],
    priority: NDArray[np.int64],
    after_start: NDArray[np.int64],
    after: NDArray[np.int32],
    load_start: NDArray[np.int64],
    load_link: NDArray[np.int32],
    load: NDArray[np.float64],
    num_streams: int,
    num_links: int,
    window: NDArray[np.int32],
    window_bytes: NDArray[np.float64],
    returns: NDArray[np.int32],
    credit: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int32], int]: ...
def path_lengths(
    seconds: NDArray[np.float64], after_start: NDArray[np.int64], after: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...
def operation_tasks(
    decision: NDArray[np.int32],
    group: NDArray[np.int32],
    priority: NDArray[np.int64],
    ways: NDArray[np.int32],
    after_start: NDArray[np.int64],
    after: NDArray[np.int32],
    way_start: NDArray[np.int64],
    motif_start: NDArray[np.int64],
    option_start: NDArray[np.int64],
    stream: NDArray[np.int32],
    starting: NDArray[np.float64],
    amount: NDArray[np.float64],
    rate: NDArray[np.float64],
    pieces: NDArray[np.int32],
    way: NDArray[np.int32],
    ranked: NDArray[np.uint8],
    rank: NDArray[np.int64],
    options: NDArray[np.int32],
    width: int,
) -> tuple[
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.float64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int32],
]: ...

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

class Element:
    int32: ClassVar[Element]
    float32: ClassVar[Element]

class AggregationJob:
    def __init__(
        self,
        id: int,  # noqa: A002
        workers: int,
        slots: int,
        values: int,
        window: int,
        element: Element,
        timeout_ns: int,
        patience_ns: int,
        settings: dict[str, float],
    ) -> None: ...

class Node:
    def receive(self, sender: int, packet: bytes, now_ns: int) -> list[tuple[list[int], bytes]]: ...
    def wake(self, now_ns: int) -> list[tuple[list[int], bytes]]: ...
    def deadline_ns(self) -> int | None: ...
    def state(self, now_ns: int) -> bytes: ...
    def clone(self) -> Node: ...
    def counters(self) -> dict[str, int]: ...

class Aggregator(Node):
    def open(self, job: AggregationJob, children: list[int], parent: int = -1) -> None: ...
    def close(self, job: int) -> None: ...
    def slots_in_use(self) -> int: ...
    def waits_for(self, job: int) -> list[int]: ...

class Worker(Node):
    def begin(self, input: int, output: int, count: int, now_ns: int) -> list[tuple[list[int], bytes]]: ...  # noqa: A002
    def done(self) -> bool: ...
    def failure(self) -> str: ...

class SwitchServer:
    def port(self) -> int: ...
    def stop(self) -> None: ...
    def report(self) -> dict[str, Any]: ...
    def events(self) -> list[str]: ...

class SwitchClient:
    def join(self, timeout_s: float) -> None: ...
    def all_reduce(self, input: int, output: int, count: int, timeout_s: float) -> None: ...  # noqa: A002
    def close(self, why: str) -> None: ...
    def counters(self) -> dict[str, int]: ...

def switch_server(
    *,
    protocol: str,
    secret: bytes,
    workers: int,
    slots: int,
    host: str,
    port: int,
    lanes: int,
    faults: tuple[float, float, float, int, int],
    parent: tuple[str, int, int, int] | None,
    silence_s: float,
    most_jobs: int,
    most_slots: int,
    most_per_second: float,
) -> SwitchServer: ...
def switch_client(
    *,
    host: str,
    port: int,
    lanes: int,
    protocol: str,
    secret: bytes,
    job: AggregationJob,
    index: int,
    member: int,
    members: int,
    epoch: int,
    silence_s: float,
) -> SwitchClient: ...
def siphash(first: int, second: int, data: bytes) -> int: ...

class SwitchAggWorker(Worker):
    def __init__(self, job: AggregationJob, index: int, above: int) -> None: ...
    def begin_pairs(
        self, pairs: list[tuple[bytes, Sequence[int]]], now_ns: int
    ) -> list[tuple[list[int], bytes]]: ...
    def combined(self) -> dict[bytes, list[int]]: ...

def aggregation_protocols() -> list[str]: ...
def aggregation_switch(protocol: str, slots: int) -> Aggregator: ...
def aggregation_worker(protocol: str, job: AggregationJob, index: int, above: int) -> Worker: ...
def aggregation_server(protocol: str) -> Aggregator | None: ...
def block_exponent(values: NDArray[np.float32]) -> int: ...
def block_scale(exponent: int, workers: int) -> float: ...
def block_quantise(values: NDArray[np.float32], exponent: int, workers: int) -> NDArray[np.int32]: ...
def block_dequantise(sums: NDArray[np.int32], exponent: int, workers: int) -> NDArray[np.float32]: ...
def add_saturating(to: NDArray[np.int32], values: NDArray[np.int32]) -> int: ...
def to_fixed(values: NDArray[np.float32], factor: float) -> NDArray[np.int32]: ...
def from_fixed(sums: NDArray[np.int32], factor: float) -> NDArray[np.float32]: ...
def fpisa_add(
    kind: str,
    full: bool,
    guard: int,
    headroom: int,
    exponents: NDArray[np.int32],
    mantissas: NDArray[np.int32],
    values: NDArray[Any],
) -> tuple[int, int, int]: ...
def fpisa_read(
    kind: str, guard: int, nearest: bool, exponents: NDArray[np.int32], mantissas: NDArray[np.int32]
) -> NDArray[Any]: ...
def float_sum(rows: NDArray[Any], bfloat16: bool = False) -> NDArray[Any]: ...

class AggregationLink:
    def __init__(
        self,
        *,
        bytes_per_s: float,
        latency_ns: int,
        queue_bytes: int,
        overhead_bytes: int,
        drop: float,
        duplicate: float,
        reorder: float,
        reorder_delay_ns: int,
    ) -> None: ...

def aggregation_experiment(
    *,
    protocol: str,
    job: AggregationJob,
    groups: list[int],
    link: AggregationLink,
    uplink: AggregationLink,
    switch_packets_per_s: float,
    worker_packets_per_s: float,
    tensors: list[int],
    starts_ns: list[int],
    seed: int,
    crash_worker: int,
    crash_at_ns: int,
    restart_switch: int,
    restart_at_ns: int,
    limit_ns: int,
) -> dict[str, Any]: ...
def aggregation_exploration(
    *,
    protocol: str,
    job: AggregationJob,
    groups: list[int],
    tensors: list[int],
    reordering: bool,
    losses: int,
    duplicates: int,
    early_timeouts: int,
    most_events: int,
    most_states: int,
) -> dict[str, Any]: ...

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
