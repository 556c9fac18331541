"""`coppice switch xdp`: aggregation switch in the kernel (XDP)."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

from msgspec import Struct, structs

from coppice.cli.options.declaring import with_options
from coppice.cli.output.render import print_fields, print_json, print_note
from coppice.options import option
from coppice.options.shared import JsonOption
from coppice.text import plural


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
    options: Annotated[ServedJob, option("What is served", "--option")],
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
