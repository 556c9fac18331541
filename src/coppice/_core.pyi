"""Types of the native core, planning and simulation: arrays in, arrays out."""

from types import SimpleNamespace
from typing import Any

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

def shortest_distances(
    num_nodes: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    length: NDArray[np.int64],
    sources: NDArray[np.int32],
) -> NDArray[np.int64]: ...

class TwoStage:
    def __init__(
        self,
        boxes: int,
        width: int,
        near_start: NDArray[np.int64],
        near: NDArray[np.int32],
        far_start: NDArray[np.int64],
        far: NDArray[np.int32],
        cross_start: NDArray[np.int64],
        cross: NDArray[np.int32],
        cap: NDArray[np.int64],
        demand: NDArray[np.int64],
        scale: int,
    ) -> None: ...
    def fill(self, deal: int) -> None: ...
    def sweep(self, steepness: float) -> None: ...
    def worst(self) -> float: ...
    def lengths(self, steepness: float) -> NDArray[np.float64]: ...
    def loads(self) -> NDArray[np.int64]: ...
    def parts(
        self,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]: ...

def walk_forest(forest: Any) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None: ...

class DamagedForest:
    def __init__(self, columns: Any) -> None: ...
    @property
    def load(self) -> NDArray[np.int64]: ...
    @property
    def broken(self) -> NDArray[np.int64]: ...
    def moved(
        self, scale: int, limit: NDArray[np.int64], low: bool, tallest: int
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64], int, int, int] | None: ...

def nccl_search(
    system: Any, search: Any, speeds: NDArray[np.float64]
) -> tuple[
    int,
    int,
    float,
    float,
    float,
    int,
    int,
    int,
    int,
    int,
    NDArray[np.int32],
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
    most_checks: int = -1,
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
def grow_together(
    num_nodes: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    cap: NDArray[np.int64],
    root: int,
    trees: int,
) -> NDArray[np.int32]: ...
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
def hashed_loads(
    num_nodes: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    cap: NDArray[np.int64],
    forwards: NDArray[np.bool_],
    relays: bool,
    from_node: NDArray[np.int32],
    to_node: NDArray[np.int32],
    channel: NDArray[np.int64],
    units: NDArray[np.int64],
    parts: int,
    dealt: bool,
    first_seed: int,
    draws: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]: ...
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
def grow_low_tree(
    num_ranks: int,
    cost: NDArray[np.float64],
    far: NDArray[np.float64],
    root: int,
    height: int,
    turn: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]: ...
def rehung_low_tree(
    num_ranks: int,
    cost: NDArray[np.float64],
    sender: NDArray[np.int32],
    receiver: NDArray[np.int32],
    root: int,
    height: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]: ...
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
def recreate(
    num_ranks: int,
    num_ports: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    port_start: NDArray[np.int64],
    port: NDArray[np.int32],
    duration: NDArray[np.int64],
    offset: NDArray[np.int64],
    hold: NDArray[np.int64],
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    size: NDArray[np.int32],
    start: NDArray[np.int64],
    channel: NDArray[np.int32],
    chunk: NDArray[np.int32],
    adds: NDArray[np.uint8],
    summed: bool,
    seed: int,
    looks: int,
    enough: int,
) -> tuple[
    int,
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.uint8],
]: ...
def simulate_messages(
    traffic: SimpleNamespace, fabric: SimpleNamespace, options: SimpleNamespace
) -> dict[str, Any]: ...
def route_circuits(
    num_nodes: int,
    tail: NDArray[np.int32],
    head: NDArray[np.int32],
    rate: NDArray[np.float64],
    fixed: NDArray[np.float64],
    terminals: NDArray[np.int32],
    parts: int,
    power: NDArray[np.int32],
    message: NDArray[np.float64],
    fullest: float,
    even: float,
) -> tuple[float, NDArray[np.float64], NDArray[np.int64], NDArray[np.int32]]: ...
def quickest_to(
    num_nodes: int,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    rate: NDArray[np.float64],
    latency: NDArray[np.int64],
    supply: NDArray[np.float64],
    sink: int,
    least: float,
    most_offsets: int,
) -> tuple[float, float, NDArray[np.int64], NDArray[np.uint8], bool, int]: ...
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
def cheapest_tour(points: int, cost: NDArray[np.float64]) -> NDArray[np.int32]: ...

class AllToAllV:
    def __init__(
        self,
        width: int,
        order: NDArray[np.int32],
        crossing: bool,
        near: NDArray[np.int64],
        far: NDArray[np.int64],
        counts: NDArray[np.int64],
        least_saved: int,
    ) -> None: ...
    def relays(self) -> bool: ...
    def busiest(self) -> tuple[int, int]: ...
    def busiest_directly(self) -> tuple[int, int]: ...
    def parts(
        self, rank: int
    ) -> tuple[
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int64],
        NDArray[np.int64],
    ]: ...
    def program(
        self, rank: int, piece: int
    ) -> tuple[
        NDArray[np.int32],
        NDArray[np.int8],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int8],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int8],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int32],
        int,
        int,
        int,
        int,
    ]: ...
