"""`coppice switch serve` and `xdp`: aggregation switch over UDP, in software or in the kernel."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct, structs
from msgspec.structs import asdict, replace

from coppice.cli.options.declaring import with_options
from coppice.cli.output import json_line, print_fields, print_json, print_note
from coppice.innetwork.serving.settings import SwitchSettings
from coppice.options import option
from coppice.options.shared import JsonOption
from coppice.text import plural

if TYPE_CHECKING:
    from coppice.innetwork.serving.udp import SwitchServer


_LOOK_EVERY_S = 0.05


@with_options(
    "protocol workers slots port host threads secret settings report as_json",
    defaults={"port": 9000},
)
def serve(
    settings: SwitchSettings,
    *,
    secret: Annotated[
        Path | None,
        option("What workers must know; without: against accidents only.", metavar="FILE"),
    ] = None,
    report: Annotated[float, option("Interval of printed counters in seconds; 0: never.", ge=0.0)] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Run a switch until Ctrl-C or SIGTERM; prints a line once it listens, and its counters at the end.

    SIGUSR1 prints the counters in between. Workers are ranks with the algorithm of the protocol's name and
    COPPICE_SWITCH=HOST:PORT, and COPPICE_SWITCH_SECRET=FILE where there is a secret.

    \b
    Examples:
      coppice switch serve --system switchml --workers 4 --slots 256 --port 9000
      coppice switch serve --system switchml,atp,sharp --workers 2
      coppice switch serve --workers 2 --fault drop=0.01 --fault reorder=0.01 --fault seed=7 --json --report 1
      coppice switch serve --workers 2 --parent 10.0.0.1:9000 --index 0 --siblings 2
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.innetwork.serving.udp import SwitchServer, read_secret

    stopping, asked = threading.Event(), threading.Event()
    handlers = {
        signal.SIGINT: lambda *_: stopping.set(),
        signal.SIGTERM: lambda *_: stopping.set(),
        signal.SIGUSR1: lambda *_: asked.set(),
    }
    settings = replace(settings, secret=read_secret(secret))
    with SwitchServer(**asdict(settings)) as switch:
        before = {which: signal.signal(which, handler) for which, handler in handlers.items()}
        try:
            jobs = f"jobs of {settings.workers} workers" if settings.workers else "jobs of any size"
            record = {
                "protocol_names": settings.protocol,
                "protocol": settings.protocol,
                "slots": settings.slots,
            }
            _say(
                f"listening on {switch.address}: {settings.protocol}, {settings.slots} slots, {jobs}",
                "switch-listening",
                {"event": "listening", "address": switch.address, **record},
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
        _say(line, "switch-event", {"event": "job", "what": line}, as_json=as_json)


def _counters(switch: SwitchServer, *, as_json: bool) -> None:
    from coppice.innetwork.serving.settings import without_former_names

    found = switch.report()
    words = [f"{name} {count}" for name, count in found.items() if isinstance(count, int) and count]
    for part in ("gate", "protocol"):
        counts = ", ".join(
            f"{name} {count}" for name, count in without_former_names(found[part]).items() if count
        )
        words.append(f"{part}: {counts or 'nothing'}")
    record = {"event": "counters", "job_count": found["jobs"], "protocol_counts": found["protocol"], **found}
    _say("counters: " + "; ".join(words), "switch-counters", record, as_json=as_json)


def _say(words: str, output: str, record: dict[str, Any], *, as_json: bool) -> None:
    sys.stdout.write((json_line(output, record) if as_json else words) + "\n")
    sys.stdout.flush()


class ServedJob(Struct, frozen=True, kw_only=True):
    """The job that the program of a switch serves."""

    job: Annotated[int, option("low byte of the job", ge=0)] = 0
    first_packet: Annotated[int, option("id of the packet that begins slot 0", ge=0)] = 0


@with_options()
def xdp(
    *,
    hosts: Annotated[
        Path,
        option(
            "JSON file: the address that workers send to, and of each worker its addresses and interface.",
            metavar="FILE",
        ),
    ],
    slots: Annotated[int, option("Slots, 1 to 8192, each with two sets.", metavar="N")] = 256,
    values: Annotated[int, option("Values of a packet.", metavar="64|256")] = 64,
    options: Annotated[ServedJob, option("What is served", "--service", was=["--option"])],
    as_json: JsonOption = False,
) -> None:
    """Add up SwitchML's packets in the kernel (XDP) until Ctrl-C or SIGTERM; prints what it counted at the end.

    Needs root, clang, the headers of libbpf, and drivers with native XDP. Of a virtual cable the other end needs an XDP
    program as well, or frames vanish there (`coppice.innetwork.xdp.switch.XdpPass`).

    \b
    Examples:
      coppice switch xdp --hosts xdp-hosts.json --slots 256 --values 256
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.innetwork.serving.settings import without_former_names
    from coppice.innetwork.xdp.switch import read_xdp_hosts, serve_xdp

    found = read_xdp_hosts(hosts)
    stopping = threading.Event()
    with serve_xdp(found, slots=slots, values=values, **structs.asdict(options)) as switch:
        before = {
            which: signal.signal(which, lambda *_: stopping.set())
            for which in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            print_note(
                f"serving {plural(len(found.workers), 'worker')} at {found.ipv4}, ports 48864 to 48879"
            )
            stopping.wait()
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)
        counted = switch.counters()
    if as_json:
        print_json("switch-xdp", {"counters": counted})
        return
    shown = without_former_names(counted)
    print_fields("packets", [(name.replace("_", " "), f"{number:,}") for name, number in shown.items()])
