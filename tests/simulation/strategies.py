"""Random schedules for the simulator: any rows that make sense to it, whether or not they carry out a collective."""

from __future__ import annotations

from hypothesis import strategies as st

from coppice.schedule.schedule import Op, Schedule
from coppice.simulation import Model, Sharing
from coppice.topology.model import Topology
from coppice.topology.routing import Router
from simulation.bodies import Row, network, rows

_RATES = (1, 2, 3, 4, 8)
_LATENCIES = (0.0, 0.5, 1.0)


@st.composite
def _networks(draw: st.DrawFn) -> Topology:
    """A few GPUs around one to three switches in a line, with some direct links."""
    gpus, switches = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    rate, latency = st.sampled_from(_RATES), st.sampled_from(_LATENCIES)
    ends = [(gpu, gpus + draw(st.integers(0, switches - 1))) for gpu in range(gpus)]
    ends += [(gpus + i, gpus + i + 1) for i in range(switches - 1)]
    links = [(a, b, draw(rate), draw(latency)) for x, y in ends for a, b in ((x, y), (y, x))]
    if draw(st.booleans()):
        links.append((0, 1, draw(rate), draw(latency)))
    return network(gpus, switches, links)


@st.composite
def schedules(draw: st.DrawFn, *, most: int = 14) -> Schedule:
    """Rows with steps, or rows with further dependencies; every row names its path."""
    topology = draw(_networks())
    router, gpus = Router(topology), topology.num_ranks
    chunks = draw(st.integers(1, 3))
    count, stepped = draw(st.integers(0, most)), draw(st.booleans())
    table: list[Row] = []
    step = 0
    for _ in range(count):
        src = draw(st.integers(0, gpus - 1))
        dst = (src + draw(st.integers(1, gpus - 1))) % gpus
        step += draw(st.integers(0, 1))
        op = draw(st.sampled_from(Op))
        path = router.path(src, dst)
        table.append((src, dst, draw(st.integers(0, chunks - 1)), op, path, step if stepped else -1))
    waits = st.tuples(st.integers(1, max(1, count - 1)), st.integers(0, most))
    after = [] if stepped or count < 2 else draw(st.lists(waits, max_size=3))
    shares = draw(st.lists(st.integers(1, 4), min_size=chunks, max_size=chunks))
    return rows(topology, table, shares=shares, after=[(row, earlier % row) for row, earlier in after])


@st.composite
def models(draw: st.DrawFn, *, sharing: Sharing | None = None) -> Model:
    """Every option of a model."""
    how = draw(st.sampled_from(Sharing)) if sharing is None else sharing
    workers = draw(st.integers(0, 2))
    return Model(
        workers=workers,
        shared_workers=draw(st.booleans()),
        send_us=draw(st.sampled_from((0.0, 0.3, 1.0))),
        receive_us=draw(st.sampled_from((0.0, 0.2))),
        copy_gb_per_s=draw(st.sampled_from((None, 0.5, 3.0))) if workers else None,
        burst_bytes=draw(st.sampled_from((0, 0, 100, 3000))) if how is Sharing.FIFO else 0,
        buffered=draw(st.booleans()),
        steps_bind=draw(st.booleans()),
        packed=draw(st.booleans()),
        overhead_us=draw(st.sampled_from((0.0, 0.7, 2.0))),
        sharing=how,
        store_and_forward=how is Sharing.FIFO and draw(st.booleans()),
        send_engines=draw(st.integers(0, 2)),
        receive_engines=draw(st.integers(0, 2)),
        reduce_gb_per_s=draw(st.sampled_from((None, 0.5, 7.0))),
    )
