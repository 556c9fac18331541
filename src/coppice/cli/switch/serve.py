"""`coppice switch serve`: software aggregation switch over UDP."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coppice.cli.options.inputs import JsonOption

if TYPE_CHECKING:
    from coppice.innetwork.serving.server import SwitchServer

_LOOK_EVERY_S = 0.05


def serve(
    *,
    protocol: Annotated[
        str, typer.Option("--protocol", help="What it speaks: switchml, atp, ..., or several: a,b.")
    ] = "switchml",
    workers: Annotated[int, typer.Option("--workers", min=0, help="Workers of a job; 0: any number.")] = 0,
    slots: Annotated[int, typer.Option("--slots", min=1, help="Number of aggregation slots.")] = 256,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="UDP port of the first thread; 0: any.")
    ] = 9000,
    host: Annotated[str, typer.Option("--host", help="IPv4 address to listen at.")] = "127.0.0.1",
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads, each with a port.")] = 1,
    secret: Annotated[
        Path | None,
        typer.Option(
            "--secret", metavar="FILE", help="What workers must know; without: against accidents only."
        ),
    ] = None,
    parent: Annotated[
        str | None, typer.Option("--parent", metavar="HOST:PORT", help="The switch above this one.")
    ] = None,
    index: Annotated[int, typer.Option("--index", min=0, help="Which switch below the parent.")] = 0,
    siblings: Annotated[int, typer.Option("--siblings", min=1, help="Switches below the parent.")] = 1,
    drop: Annotated[float, typer.Option("--drop", help="Share of packets to lose on purpose.")] = 0.0,
    duplicate: Annotated[float, typer.Option("--duplicate", help="Share of packets to double.")] = 0.0,
    reorder: Annotated[float, typer.Option("--reorder", help="Share of packets to hold back.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of what is lost, doubled, held back.")] = 1,
    after: Annotated[int, typer.Option("--after", min=0, help="Packets that pass unharmed first.")] = 0,
    silence: Annotated[
        float, typer.Option("--silence", help="Seconds without a worker that end its job.")
    ] = 10.0,
    most_jobs: Annotated[int, typer.Option("--most-jobs", min=1, help="Jobs at a time.")] = 64,
    most_slots: Annotated[int, typer.Option("--most-slots", min=0, help="Slots of one job; 0: all.")] = 0,
    most_packets: Annotated[
        float, typer.Option("--most-packets", min=0.0, help="Of one worker in a second; 0: any number.")
    ] = 0.0,
    report: Annotated[
        float, typer.Option("--report", min=0.0, help="Interval of printed counters in seconds; 0: never.")
    ] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Run a switch until Ctrl-C or SIGTERM; prints a line once it listens, and its counters at the end.

    SIGUSR1 prints the counters in between. Workers are ranks with the algorithm of the protocol's name and
    COPPICE_SWITCH=HOST:PORT, and COPPICE_SWITCH_SECRET=FILE where there is a secret.

    \b
    Examples:
      coppice switch serve --protocol switchml --workers 4 --slots 256 --port 9000
      coppice switch serve --protocol switchml,atp,sharp --workers 2
      coppice switch serve --workers 2 --drop 0.01 --reorder 0.01 --seed 7 --json --report 1
      coppice switch serve --workers 2 --parent 10.0.0.1:9000 --index 0 --siblings 2
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.innetwork.serving.client import read_secret
    from coppice.innetwork.serving.server import PacketFaults, SwitchServer

    faults = PacketFaults(drop=drop, duplicate=duplicate, reorder=reorder, seed=seed, after=after)
    stopping, asked = threading.Event(), threading.Event()
    handlers = {
        signal.SIGINT: lambda *_: stopping.set(),
        signal.SIGTERM: lambda *_: stopping.set(),
        signal.SIGUSR1: lambda *_: asked.set(),
    }
    with SwitchServer(
        protocol,
        workers=workers,
        slots=slots,
        host=host,
        port=port,
        threads=threads,
        secret=read_secret(secret),
        faults=faults,
        parent=parent,
        index=index,
        siblings=siblings,
        silence_s=silence,
        most_jobs=most_jobs,
        most_slots=most_slots,
        most_per_second=most_packets,
    ) as switch:
        before = {which: signal.signal(which, handler) for which, handler in handlers.items()}
        try:
            jobs = f"jobs of {workers} workers" if workers else "jobs of any size"
            _say(
                f"listening on {switch.address}: {protocol}, {slots} slots, {jobs}",
                {"event": "listening", "address": switch.address, "protocol": protocol, "slots": slots},
                as_json=as_json,
            )
            _watch(switch, stopping, asked, report_s=report, as_json=as_json)
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)
    _events(switch, as_json=as_json)
    _counters(switch, as_json=as_json)


def _watch(
    switch: SwitchServer, stopping: threading.Event, asked: threading.Event, *, report_s: float, as_json: bool
) -> None:
    """Say what happens until it is to stop."""
    due = time.monotonic() + report_s
    while not stopping.wait(_LOOK_EVERY_S):
        _events(switch, as_json=as_json)
        late = report_s > 0 and time.monotonic() >= due
        if late or asked.is_set():
            asked.clear()
            due = time.monotonic() + report_s
            _counters(switch, as_json=as_json)


def _events(switch: SwitchServer, *, as_json: bool) -> None:
    for line in switch.events():
        _say(line, {"event": "job", "what": line}, as_json=as_json)


def _counters(switch: SwitchServer, *, as_json: bool) -> None:
    from coppice.innetwork.counters import without_former_names

    found = switch.report()
    words = [f"{name} {count}" for name, count in found.items() if isinstance(count, int) and count]
    for part in ("gate", "protocol"):
        counts = ", ".join(
            f"{name} {count}" for name, count in without_former_names(found[part]).items() if count
        )
        words.append(f"{part}: {counts or 'nothing'}")
    _say("counters: " + "; ".join(words), {"event": "counters", **found}, as_json=as_json)


def _say(words: str, record: dict[str, Any], *, as_json: bool) -> None:
    sys.stdout.write((json.dumps(record) if as_json else words) + "\n")
    sys.stdout.flush()
