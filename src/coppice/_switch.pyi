"""Types of the native switches in software, their workers and their numbers."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

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
        give_up_timeout_ns: int,
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
    threads: int,
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
    threads: int,
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
