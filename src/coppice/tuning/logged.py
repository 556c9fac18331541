"""Use logs of NCCL and RCCL: measured runs for fitting, and the pick of the logged cost model.

Times that the environment forced count for the algorithm, protocol and channels that carried them out; times that
nothing forced are the default. They were not measured side by side, so that they are compared without pairs.

``NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING`` prints latency and bandwidth of every algorithm and protocol: with
them nothing about the machine has to be assumed. What the table leaves out are the two corrections for all-reduces, of
trees by size and of rings with Simple across nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.fitting.nccl_tuner import ALGORITHMS, COLLECTIVES
from coppice.logs.records import Log, LoggedCell, LoggedCommunicator, LoggedMeasurement
from coppice.selection.nccl.costs import CostCell, corrected_cell
from coppice.selection.nccl.releases import constants
from coppice.selection.selection import Selection
from coppice.topology.generation import GENERATIONS
from coppice.tuning.records import LibraryChoice, TimedRun

_Key = tuple[Collective, int, int, int]


def runs_of_logs(
    logs: Sequence[Log], *, library: str = "nccl"
) -> tuple[tuple[TimedRun, ...], tuple[str, ...]]:
    """Runs found in logs, and notes about what was left out.

    Args:
        logs: The logs (see :func:`coppice.logs.reading.read_logs`).
        library: ``nccl`` or ``rccl``: logs do not tell them apart.
    """
    versions = sorted({log.version for log in logs if log.version})
    if len(versions) > 1:
        raise InputError(f"expected logs of one version, found {', '.join(versions)}: a table is for one.")
    defaults: dict[_Key, list[float]] = {}
    times: dict[tuple[_Key, LibraryChoice], list[LoggedMeasurement]] = {}
    left: dict[str, int] = {}
    for log in logs:
        for row in log.measurements:
            reason = _unusable(row)
            if reason is not None:
                left[f"{log.file}: {reason}"] = left.get(f"{log.file}: {reason}", 0) + 1
                continue
            key = (row.collective, row.nodes or 1, row.ranks or 2, row.size_bytes)
            if row.forced and row.algorithm is not None and row.protocol is not None:
                choice = LibraryChoice(row.algorithm, row.protocol, _channels(row, log))
                times.setdefault((key, choice), []).append(row)
            else:
                defaults.setdefault(key, []).append(row.time_us)
                if row.forced is None:
                    words = f"{log.file}: does not say whether anything was forced, taken for the default"
                    left[words] = left.get(words, 0) + 1
    found = [
        TimedRun(
            library=library,
            version=versions[0] if versions else "",
            collective=key[0],
            nodes=key[1],
            ranks=key[2],
            size_bytes=key[3],
            choice=choice,
            default_us=tuple(defaults[key]),
            time_us=tuple(row.time_us for row in rows),
            paired=False,
            wrong=sum(row.wrong or 0 for row in rows),
            origin=", ".join(dict.fromkeys(row.file for row in rows)),
        )
        for (key, choice), rows in times.items()
        if key in defaults
    ]
    if not found:
        raise InputError(
            f"expected times of the default and of forced choices at equal sizes, found {len(defaults)} sizes of the "
            f"one and {len(times)} of the other: run nccl-tests with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV,TUNING, "
            "once as it is and once with NCCL_ALGO and NCCL_PROTO."
        )
    return tuple(found), tuple(f"{words} ({count} times)" for words, count in left.items())


def _unusable(row: LoggedMeasurement) -> str | None:
    if row.ranks is None or row.nodes is None:
        return "nothing tells the shape of the communicator"
    if row.ranks < 2 or row.collective not in COLLECTIVES:
        return f"no tuner is asked about {row.collective} of {row.ranks} ranks"
    if row.time_us <= 0:
        return "no time"
    if row.in_place:
        return "in place, the other figures count"
    if not row.of_kernels:
        return f"timed by the host around the call ({row.clock}), no time of kernels"
    if row.forced and (row.algorithm is None or row.protocol is None):
        return "forced, but nothing tells what ran"
    return None


def _channels(row: LoggedMeasurement, log: Log) -> int:
    """Channels where they were forced; what the library took by itself stays with the library."""
    forced = any(name.endswith(("_CTAS", "_NCHANNELS")) for name in log.settings)
    return (row.channels or 0) if forced else 0


ALGORITHM_NAMES = {own: theirs for theirs, own in ALGORITHMS.items()}

PROTOCOL_NAMES = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
"""Names that NCCL's variables use, by those of tuner tables."""


def select_by_log(
    log: Log, collective: Collective, size_bytes: int, *, ranks: int | None = None
) -> Selection:
    """Predict the pick for a call from a log, with the predicted time of every algorithm and protocol.

    Args:
        log: A log (:func:`coppice.logs.reading.read_log`).
        collective: A collective that a tuner is asked about.
        size_bytes: M (see :mod:`coppice.collectives`).
        ranks: Ranks of the communicator, where the log has the models of several, or does not tell.
    """
    function = collective.dialects.nccl
    if collective not in COLLECTIVES or function is None:
        raise InputError(
            f"expected a collective with a cost model ({', '.join(COLLECTIVES)}), found {collective}."
        )
    communicator, size = _communicator(log, ranks)
    found = tuple(
        _cell(communicator, size, cell, size_bytes)
        for cell in communicator.cells
        if cell.collective is collective
    )
    usable = [cell for cell in found if cell.time_us is not None]
    if not usable:
        raise InputError(
            f"the cost model in {log.file} (line {communicator.line}) has no {collective} that is on."
        )
    best = min(usable, key=lambda cell: cell.time_us or 0.0)
    ours = constants().ours[collective].get(best.algorithm)
    nodes = communicator.nodes
    return Selection(
        library="NCCL",
        version=log.version or "of an unknown version",
        source=f"{log.file}, line {communicator.line}",
        function=function,
        collective=collective,
        ranks=size,
        size_bytes=size_bytes,
        component="cost model printed in the log",
        algorithm=f"{best.algorithm}/{best.protocol}",
        runs_as=best.algorithm,
        ours=ours,
        parameters={"group": size // nodes} if ours == "nccl-tree" and nodes else {},
        reason=None if ours else constants().missing[best.algorithm],
        assumptions=_assumptions(communicator, collective),
        notes=_notes(log, collective, size_bytes, size),
        cells=found,
    )


def _communicator(log: Log, ranks: int | None) -> tuple[LoggedCommunicator, int]:
    """The communicator that is meant, and its ranks."""
    modelled = [each for each in log.communicators if each.cells]
    fitting = [each for each in modelled if ranks is None or each.ranks in (None, ranks)]
    if not modelled:
        raise InputError(
            f"{log.file} holds no cost model: log rank 0 with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING."
        )
    if len(fitting) != 1:
        known = ", ".join(f"{each.ranks} on {each.nodes} nodes (line {each.line})" for each in modelled[:6])
        raise InputError(
            f"expected one communicator in {log.file}, found ranks {known}: choose one with `ranks`."
        )
    size = fitting[0].ranks or ranks
    if size is None:
        raise InputError(f"{log.file} does not say how many ranks its communicator has: give `ranks`.")
    return fitting[0], size


def _cell(communicator: LoggedCommunicator, ranks: int, cell: LoggedCell, size_bytes: int) -> CostCell:
    algorithm, protocol = ALGORITHM_NAMES[cell.algorithm], PROTOCOL_NAMES[cell.protocol]
    if not cell.gb_per_s:
        return CostCell(
            algorithm=algorithm, protocol=protocol, unavailable=f"0.0 GB/s in line {cell.line} of the log"
        )
    words = f"line {cell.line} of the log: {cell.latency_us:g} us, {cell.gb_per_s:g} GB/s"
    return corrected_cell(
        CostCell(
            algorithm=algorithm,
            protocol=protocol,
            latency_us=cell.latency_us,
            gb_per_s=cell.gb_per_s,
            terms=(words,),
        ),
        cell.collective,
        size_bytes,
        ranks=ranks,
        channels=communicator.channels or 1,
        several=communicator.nodes is None or communicator.nodes > 1,
        capability=GENERATIONS["ampere"],
        common_cpu=True,
    )


def _assumptions(communicator: LoggedCommunicator, collective: Collective) -> tuple[str, ...]:
    if collective is not Collective.ALL_REDUCE:
        return ()
    words = ["GPUs of Ampere or later (the latency of rings with Simple is corrected by it)"]
    if communicator.nodes is None:
        words.append("several nodes, the log does not say")
    if communicator.channels is None:
        words.append("one channel in that correction, the log does not say")
    return tuple(words)


def _notes(log: Log, collective: Collective, size_bytes: int, ranks: int) -> tuple[str, ...]:
    """What the log itself shows of such calls."""
    seen = {
        f"{ALGORITHM_NAMES[each.algorithm]}/{PROTOCOL_NAMES[each.protocol]}"
        for each in log.decisions
        if each.collective is collective and each.size_bytes == size_bytes and each.ranks in (None, ranks)
    }
    notes = [f"the log shows {' and '.join(sorted(seen))} for calls of this size"] if seen else []
    if log.forced:
        notes.append(
            "the environment in the log limits the library's choice: its table is that of what is left"
        )
    return tuple(notes)
