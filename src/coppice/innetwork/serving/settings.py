"""Settings and counters of a switch, under one name in the command line, Python and the native code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from coppice.options import option
from coppice.options.calls import CheckedRecord


class PacketFaults(CheckedRecord, frozen=True, kw_only=True):
    """Faults to inject into the packets that a switch receives and sends, by seed."""

    drop: Annotated[float, option("Share of packets to lose on purpose.", ge=0, le=1)] = 0.0
    duplicate: Annotated[float, option("Share of packets to double.", ge=0, le=1)] = 0.0
    # 1 to 8 later packets overtake each of them
    reorder: Annotated[float, option("Share of packets to hold back.", ge=0, le=1)] = 0.0
    seed: Annotated[int, option("Of what is lost, doubled, held back.", ge=0)] = 1
    # Of each direction
    after: Annotated[int, option("Packets that pass unharmed first.", ge=0)] = 0


class SwitchSettings(CheckedRecord, frozen=True):
    """A switch in software."""

    protocol: Annotated[
        str,
        option(
            "System in the network: switchml and others, several as a,b.",
            "--system",
            metavar="LIST",
            was=["--protocol"],
        ),
    ] = "switchml"
    # Jobs of another size are refused
    workers: Annotated[int, option("Workers of a job; 0: any number.", ge=0)] = 0
    # Over all jobs and threads, of each protocol
    slots: Annotated[int, option("Number of aggregation slots.", ge=1)] = 256
    port: Annotated[int, option("UDP port of the first thread; 0: any.", ge=0, le=65535)] = 0
    host: Annotated[str, option("IPv4 address to listen at.")] = "127.0.0.1"
    threads: Annotated[int, option("Threads, each with a port.", ge=1)] = 1
    # Nothing for a public key, which guards against accidents alone
    secret: Annotated[bytes, option("What workers must know.")] = b""
    # Completed sums go there, and come back from there
    parent: Annotated[str | None, option("The switch above this one.", metavar="HOST:PORT")] = None
    index: Annotated[int, option("Which switch below the parent.", ge=0)] = 0
    siblings: Annotated[int, option("Switches below the parent.", ge=1)] = 1
    faults: Annotated[PacketFaults, option("Faults of packets", "--fault")] = PacketFaults()
    silence_s: Annotated[float, option("Seconds without a worker that end its job.", "--silence", gt=0)] = (
        10.0
    )
    most_jobs: Annotated[int, option("Jobs at a time.", ge=1)] = 64
    most_slots: Annotated[int, option("Slots of one job; 0: all.", ge=0)] = 0
    most_per_second: Annotated[
        float, option("Of one worker in a second; 0: any number.", "--most-packets", ge=0)
    ] = 0.0


class ClientSettings(CheckedRecord, frozen=True):
    """One worker of a job at a switch."""

    address: Annotated[str, option("Where the switch is, as HOST:PORT.")]
    worker: Annotated[int, option("Which worker this is, 0 .. workers - 1.")]
    workers: Annotated[int, option("How many there are.", gt=0)]
    member: Annotated[
        tuple[int, ...] | None,
        option(
            "Which of how many workers this is at its switch, where the job has workers at several switches below one; "
            "None where this switch has all of them."
        ),
    ] = None
    job: Annotated[int, option("Number of the job, the same at all workers.", ge=0, le=(1 << 32) - 1)] = 1
    epoch: Annotated[
        int,
        option("Session of the job: a job that is started again needs a higher one.", ge=0, le=(1 << 32) - 1),
    ] = 1
    protocol: Annotated[str, option("What the switch speaks, see `coppice.innetwork.systems`.")] = "switchml"
    element: Annotated[str, option("Type of the elements at the switch: float32 or int32.")] = "float32"
    values: Annotated[
        int | None, option("Of one packet; None for as many as the protocol usually has.", gt=0)
    ] = None
    slots: Annotated[
        int | None,
        option(
            "Sums of the job that can be under way, over all threads; None for 64, or as many as the switch lets a job "
            "have if that is less."
        ),
    ] = None
    window: Annotated[
        int | None,
        option("Packets that may be under way, over all threads; None for as many as there are slots."),
    ] = None
    threads: Annotated[int, option("Threads of the switch to use, with as many threads here.", gt=0)] = 1
    timeout_ms: Annotated[float, option("After which a packet is sent again.", gt=0)] = 10.0
    secret: Annotated[bytes, option("What the switch asks for.")] = b""
    settings: Annotated[Mapping[str, float] | None, option("What only the protocol knows, by name.")] = None
    silence_s: Annotated[
        float, option("A switch that answers nothing for so long is gone, in seconds.", gt=0)
    ] = 5.0
    join_timeout_s: Annotated[
        float, option("How long the other workers are waited for when the job begins, in seconds.")
    ] = 30.0


SWITCHML_COUNTS = (
    "received",
    "aggregated",
    "completed",
    "duplicate",
    "answered",
    "malformed",
    "unknown_sender",
    "out_of_range",
    "stale",
    "future",
)
"""What a switch of SwitchML counts, in the order of the cells of the P4 and XDP programs."""

FORMER_NAMES = {"duplicate": "repeated", "unknown_sender": "stranger", "future": "ahead"}


def with_former_names(counts: Mapping[str, int]) -> dict[str, int]:
    """Add renamed counters under their former names, so that readers of earlier reports find them.

    Examples:
        >>> with_former_names({"sent": 9, "duplicate": 1})
        {'sent': 9, 'duplicate': 1, 'repeated': 1}
    """
    return {**counts, **{old: counts[new] for new, old in FORMER_NAMES.items() if new in counts}}


def without_former_names(counts: Mapping[str, int]) -> dict[str, int]:
    """Leave out the former names again, for tables that people read."""
    return {name: count for name, count in counts.items() if name not in FORMER_NAMES.values()}
