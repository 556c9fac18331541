"""Matrix products decomposed along the ring collective that feeds them or reduces them, shard by shard.

Source: Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning Models"
(ASPLOS 2023), in XLA as windowed einsum, elsewhere as collective matmul.

Theory. An all-gather over N ranks followed by a product becomes N products of a shard each: rank r multiplies the shard
it has while the next one comes from rank r + 1. A product followed by a reduce-scatter becomes N products of the part
of one destination each: rank r first computes the part of the rank that is N - 1 hops away, adds it to what comes from
rank r + 1, and passes the sum on; its own part is last. With c seconds for the product of a shard and h for its hop
both take

    c + (N - 1) max(c, h)            instead of            N c + (N - 1) h,

as the first product of a gather needs no hop, the last of a scatter feeds none, and in between a product and a hop run
side by side. Proof: the product of a gather's shard i starts when shard i has come, at i h or later, and when the
products before it are done, at i c or later. So it ends at (i + 1) c or i h + c, whichever is later, if links never
wait, which they do not. A reduce-scatter is the same run backwards.

A loop that hands its buffer to the next round copies it first (k seconds, on the compute stream, with the data there):
(N - 1) (k + max(c, h)) + c. Unrolling by two has two buffers that take turns, and no copies.

Both ways around the ring, half of the shards each, hops go side by side: with m = floor(N / 2) rounds

    max(N c, (N - 1) c + h, m h + c (N even) or m h + 2 c (N odd)).

A rank with one thread runs the tasks in their order (:func:`execution_order`): it waits for a hop only before what
needs it, and starts whatever hops may start before it computes. So c and h of a round run side by side there as well,
and it takes what the formulas say.

Shards that differ (N does not divide the shape) are simulated rank by rank; padded to the largest they take what the
formula says, and no less than unpadded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from coppice.errors import InputError
from coppice.iteration.tasks import TaskGraph, TaskGraphBuilder


def shard_sizes(rows: int, ranks: int) -> list[int]:
    """Rows of each shard, also where the ranks do not divide them: equal ones, the last ones smaller.

    Examples:
        >>> shard_sizes(10, 4), shard_sizes(5, 4)
        ([3, 3, 3, 1], [2, 2, 1, 0])
    """
    if rows < 1 or ranks < 1:
        raise InputError(f"expected 1 or more rows and ranks, found {rows} and {ranks}.")
    most = -(-rows // ranks)
    return [min(most, max(0, rows - rank * most)) for rank in range(ranks)]


@dataclass(frozen=True, kw_only=True)
class RingStep:
    """Task of a rank; all ranks are alike."""

    kind: str  # `product`, `hop`, `copy` of what goes, or `sum` of what came last
    step: int  # Its number among those of its kind and way
    offset: int  # The shard that it is about is that of the rank so many further on
    way: int = 0  # -1: to the rank before, from the next one; 1: the other way; 0: it stays
    # Numbers of the tasks that it comes after; of a hop among them, what arrives by it
    after: tuple[int, ...] = ()


def execution_order(steps: Sequence[RingStep]) -> list[tuple[str, int]]:
    """Execution order of a single-threaded rank: ``start`` and ``wait`` of hops, ``run`` of all other tasks.

    Args:
        steps: The tasks, in an order in which each comes behind those that it comes after.

    Examples:
        >>> ring = RingProduct(ranks=2, product=1.0, hop=1.0)
        >>> execution_order(ring.steps())
        [('start', 0), ('run', 1), ('wait', 0), ('run', 2)]
    """
    done: set[int] = set()
    started: set[int] = set()
    made: list[tuple[str, int]] = []

    def start_ready() -> None:
        for number, step in enumerate(steps):
            if step.kind == "hop" and number not in started and done.issuperset(step.after):
                started.add(number)
                made.append(("start", number))

    for number, step in enumerate(steps):
        if number in started:
            continue
        for before in step.after:
            if before not in done:
                done.add(before)
                made.append(("wait", before))
        start_ready()
        if step.kind != "hop":
            done.add(number)
            made.append(("run", number))
    return made


@dataclass(frozen=True, kw_only=True)
class RingProduct:
    """A matrix product decomposed along its ring.

    Raises:
        InputError: If a number is out of range, or copies are asked for both ways.

    Examples:
        >>> RingProduct(ranks=4, product=2.0, hop=1.0).seconds
        8.0
        >>> RingProduct(ranks=4, product=2.0, hop=1.0).serial_seconds
        11.0
    """

    ranks: int  # Ranks of the ring, N
    product: float  # Seconds of the product of a shard
    hop: float  # Seconds in which a shard goes to the neighbour
    # The product comes first and a reduce-scatter takes it; otherwise an all-gather feeds it
    scatter: bool = False
    both_ways: bool = False  # Half of the shards go each way around
    # Seconds in which a buffer is copied before each hop; 0 where the loop is unrolled by two
    copy: float = 0.0
    # Seconds of a product beside which a hop goes, where hops slow products down: all but the first of a
    # scatter, all but the last of a gather; None: as that one
    later: float | None = None

    def __post_init__(self) -> None:
        if self.ranks < 1 or min(self.product, self.hop, self.copy, self.later or 0.0) < 0:
            raise InputError(
                "expected 1 or more ranks and seconds of 0 or more, found "
                f"{self.ranks} ranks and {self.product}, {self.hop}, {self.copy}, {self.later} s."
            )
        if self.both_ways and (self.copy or self.later is not None):
            raise InputError("expected no copies and no slower products in a ring both ways, found some.")

    @property
    def serial_seconds(self) -> float:
        """Time of collective and product without overlap, hop by hop."""
        return self.ranks * self.product + (self.ranks - 1) * self.hop

    @property
    def seconds(self) -> float:
        """Closed-form time, equal to the simulation of :meth:`graph`."""
        count, product, hop = self.ranks, self.product, self.hop
        if count == 1:
            return product
        if not self.both_ways:
            later = product if self.later is None else self.later
            return product + (count - 1) * (self.copy + max(later, hop))
        rounds = count // 2
        last = rounds * hop + product * (1 + count % 2)
        return max(count * product, (count - 1) * product + hop, last)

    def pays(self, *, whole: float, collective: float, extra: float = 0.0) -> bool:
        """Whether decomposition pays: no slower than collective then product, with its overhead in seconds."""
        return whole + collective >= self.seconds + extra

    def graph(
        self,
        *,
        folded: bool = True,  # One rank stands for all, which do the same at the same time
        # Seconds of the product of each shard, where they differ; not folded
        products: Sequence[float] | None = None,
        # Seconds of the hop of each shard, where they differ; not folded
        hops: Sequence[float] | None = None,
    ) -> TaskGraph:
        """Task graph."""
        for each in (products, hops):
            if each is not None and (folded or len(each) != self.ranks):
                raise InputError(
                    f"expected {self.ranks} shards that differ, and `folded=False`, found {len(each)} and {folded}."
                )
        return self._built(1 if folded else self.ranks, products, hops).graph.build()

    def steps(self) -> tuple[RingStep, ...]:
        """Tasks of a rank, which :meth:`graph` simulates and real ranks execute."""
        build = self._built(1, None, None)
        graph = build.graph.build()
        before = [tuple(int(each) for each in graph.predecessors(task)) for task in range(len(graph))]
        return tuple(
            replace(step, after=tuple(each for each in after if build.feeds(each, task)))
            for task, (step, after) in enumerate(zip(build.steps, before, strict=True))
        )

    def _built(self, ranks: int, products: Sequence[float] | None, hops: Sequence[float] | None) -> _Build:
        build = _Build(
            ring=self,
            graph=TaskGraphBuilder(),
            ranks=ranks,
            products=products or [self.product] * self.ranks,
            hops=hops or [self.hop] * self.ranks,
            even=products is None,
            last=[[] for _ in range(ranks)],
        )
        if self.both_ways:
            (build.scatter_both_ways if self.scatter else build.gather_both_ways)()
        else:
            (build.scatter if self.scatter else build.gather)()
        return build


@dataclass
class _Build:
    """Graph under construction: products of each rank in order, hops on links to its neighbours."""

    ring: RingProduct
    graph: TaskGraphBuilder
    ranks: int
    products: Sequence[float]
    hops: Sequence[float]
    even: bool
    last: list[list[int]]
    steps: list[RingStep] = field(default_factory=list)

    def feeds(self, before: int, task: int) -> bool:
        """Whether a task uses the result of an earlier one, rather than only following it on the device."""
        computed = ("product", "copy")
        return self.steps[task].kind not in computed or self.steps[before].kind not in computed

    def noted(self, rank: int, kind: str, step: int, shard: int, way: int = 0) -> None:
        """Record the meaning of a task."""
        self.steps.append(RingStep(kind=kind, step=step, offset=(shard - rank) % self.ring.ranks, way=way))

    def at(self, rank: int) -> int:
        """Simulated rank that stands for a rank."""
        return rank % self.ranks

    def compute(self, rank: int, name: str, kind: str, seconds: float, after: Sequence[int]) -> int:
        """Computation of a rank after its previous one."""
        stream = self.graph.stream(f"compute {rank}")
        task = self.graph.add(f"{name} at {rank}", kind, stream, seconds, after=[*after, *self.last[rank]])
        self.last[rank] = [task]
        return task

    def product(self, rank: int, shard: int, step: int, after: Sequence[int]) -> int:
        """Product of a shard."""
        seconds = self.products[shard % self.ring.ranks]
        alone = 0 if self.ring.scatter else self.ring.ranks - 1  # no hop goes beside this one
        if self.even and step != alone and self.ring.later is not None:
            seconds = self.ring.later
        self.noted(rank, "product", step, shard)
        return self.compute(rank, f"product {step}", "product", seconds, after)

    def hop(self, rank: int, shard: int, step: int, after: Sequence[int], way: str = "") -> int:
        """Transfer of a shard from a rank to its neighbour."""
        link = self.graph.stream(f"link of {rank}{way}")
        seconds = self.hops[shard % self.ring.ranks]
        self.noted(rank, "hop", step, shard, 1 if way == " down" else -1)
        return self.graph.add(f"hop {step} from {rank}{way}", "hop", link, seconds, after=after)

    def copied(self, rank: int, shard: int, step: int, after: list[int]) -> list[int]:
        """Predecessors of a hop: the copy of its buffer, if it has one."""
        if not self.ring.copy:
            return after
        self.noted(rank, "copy", step, shard)
        return [self.compute(rank, f"copy {step}", "copy", self.ring.copy, after)]

    def summed(self, rank: int, parts: Sequence[int]) -> None:
        """Completion of the reduction."""
        self.noted(rank, "sum", 0, rank)
        self.graph.barrier(f"sum of {rank}", parts)

    def gather(self) -> None:
        """Rank r has shard r + i in step i and passes it to rank r - 1."""
        count = self.ring.ranks
        came: list[list[int]] = [[] for _ in range(self.ranks)]
        for step in range(count):
            sent: list[int] = []
            for rank in range(self.ranks):
                ready = came[rank]
                if step < count - 1:
                    ready = self.copied(rank, rank + step, step, ready)
                    sent.append(self.hop(rank, rank + step, step, ready))
                self.product(rank, rank + step, step, ready)
            if sent:
                came = [[sent[self.at(rank + 1)]] for rank in range(self.ranks)]

    def scatter(self) -> None:
        """Rank r computes for rank r + 1 + i in step i, adds what came from rank r + 1, passes it to rank r - 1."""
        count = self.ring.ranks
        came: list[list[int]] = [[] for _ in range(self.ranks)]
        for step in range(count):
            sent = []
            for rank in range(self.ranks):
                part = self.product(rank, rank + 1 + step, step, [])
                summed = [part, *came[rank]]
                if step < count - 1:
                    summed = self.copied(rank, rank + 1 + step, step, summed)
                    sent.append(self.hop(rank, rank + 1 + step, step, summed))
                else:
                    self.summed(rank, summed)
            if sent:
                came = [[sent[self.at(rank + 1)]] for rank in range(self.ranks)]

    def gather_both_ways(self) -> None:
        """All-gather in both directions: in round j shards r + j and r - j reach rank r."""
        count = self.ring.ranks
        up: list[list[int]] = [[] for _ in range(self.ranks)]
        down: list[list[int]] = [[] for _ in range(self.ranks)]
        for rank in range(self.ranks):
            self.product(rank, rank, 0, [])
        for step in range(1, count // 2 + 1):
            single = 2 * step == count
            ups = [self.hop(rank, rank + step - 1, step, up[rank], " up") for rank in range(self.ranks)]
            downs = [
                self.hop(rank, rank - step + 1, step, down[rank], " down")
                for rank in range(self.ranks)
                if not single
            ]
            for rank in range(self.ranks):
                up[rank] = [ups[self.at(rank + 1)]]
                self.product(rank, rank + step, step, up[rank])
                if not single:
                    down[rank] = [downs[self.at(rank - 1)]]
                    self.product(rank, rank - step, step, down[rank])

    def scatter_both_ways(self) -> None:
        """Reduce-scatter in both directions: parts of the farthest ranks first, a rank's own last."""
        count = self.ring.ranks
        up: list[list[int]] = [[] for _ in range(self.ranks)]
        down: list[list[int]] = [[] for _ in range(self.ranks)]
        for step in range(count // 2, 0, -1):
            single = 2 * step == count
            ups, downs = [], []
            for rank in range(self.ranks):
                if not single:
                    part = self.product(rank, rank + step, step, [])
                    downs.append(self.hop(rank, rank + step, step, [part, *down[rank]], " down"))
                part = self.product(rank, rank - step, step, [])
                ups.append(self.hop(rank, rank - step, step, [part, *up[rank]], " up"))
            for rank in range(self.ranks):
                up[rank] = [ups[self.at(rank + 1)]]
                if downs:
                    down[rank] = [downs[self.at(rank - 1)]]
        for rank in range(self.ranks):
            own = self.product(rank, rank, 0, [])
            self.summed(rank, [own, *up[rank], *down[rank]])
