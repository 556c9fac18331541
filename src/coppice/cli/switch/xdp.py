"""`coppice switch xdp`: aggregation switch in the kernel (XDP)."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from coppice.cli.options.inputs import JsonOption
from coppice.cli.output.render import print_fields, print_json, print_note
from coppice.text import plural


def xdp(
    *,
    hosts: Annotated[
        Path,
        typer.Option(
            "--hosts",
            metavar="FILE",
            help="JSON file: the address that workers send to, and of each worker its addresses and interface.",
        ),
    ],
    slots: Annotated[
        int, typer.Option("--slots", metavar="N", help="Slots, 1 to 8192, each with two sets.")
    ] = 256,
    values: Annotated[int, typer.Option("--values", metavar="64|256", help="Values of a packet.")] = 64,
    job: Annotated[int, typer.Option("--job", metavar="N", help="Low byte of the job that is served.")] = 0,
    first_packet: Annotated[
        int, typer.Option("--first-packet", metavar="N", help="Id of the packet that begins slot 0.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Add up SwitchML's packets in the kernel (XDP) until Ctrl-C or SIGTERM; prints what it counted at the end.

    Needs root, clang, the headers of libbpf, and drivers with native XDP. Of a virtual cable the other end needs an XDP
    program as well, or frames vanish there (`coppice.innetwork.xdp.switch.XdpPass`).

    \b
    Examples:
      coppice switch xdp --hosts xdp-hosts.json --slots 256 --values 256
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.innetwork.counters import without_former_names
    from coppice.innetwork.xdp.switch import read_xdp_hosts, serve_xdp

    found = read_xdp_hosts(hosts)
    stopping = threading.Event()
    with serve_xdp(found, slots=slots, values=values, job=job, first_packet=first_packet) as switch:
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
        print_json({"counters": counted})
        return
    shown = without_former_names(counted)
    print_fields("packets", [(name.replace("_", " "), f"{number:,}") for name, number in shown.items()])
