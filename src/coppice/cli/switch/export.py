"""`coppice switch export`: the program of a switch that aggregates, with its table entries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

from msgspec import structs

from coppice.cli.options.declaring import with_options
from coppice.cli.output import print_fields, print_json
from coppice.cli.switch.serve import ServedJob
from coppice.errors import InputError
from coppice.options import option
from coppice.options.names import FPISA_MODES, P4_SYSTEMS, P4_VARIANTS, SWITCH_TARGETS
from coppice.options.shared import JsonOption
from coppice.text import plural, suggestion


class ServedProgram(ServedJob, frozen=True, kw_only=True):
    """The job, and how floats are added."""

    mode: Annotated[
        str, option("of fpisa: full, or approximate as switches of today can", choices=FPISA_MODES)
    ] = "full"


@with_options()
def export(
    *,
    to: Annotated[
        str,
        option("Form of the program: P4_16 for v1model.", metavar="|".join(SWITCH_TARGETS)),
    ],
    output: Annotated[
        Path, option("Folder for the program and entries.txt.", "-o", "--output", metavar="DIR")
    ],
    system: Annotated[
        str,
        option(
            "System in the network: sums of int32 (switchml) or float32 (fpisa), or of int32 in slots that jobs share "
            "(atp).",
            metavar="NAME",
        ),
    ] = "switchml",
    workers: Annotated[
        int | None,
        option("Workers, 1 to 32 [default: those of --hosts, or 2].", metavar="N"),
    ] = None,
    slots: Annotated[
        int, option("Slots, 1 to 8192, each with two sets; of atp to 65536, with one.", metavar="N")
    ] = 256,
    values: Annotated[
        int | None,
        option("Values of a packet, all added in one pass [default: 64, of atp 62].", metavar="64|256"),
    ] = None,
    variant: Annotated[
        str,
        option(
            "With packet ids checked, or as published: a late duplicate is then taken for a new packet.",
            metavar="|".join(P4_VARIANTS),
        ),
    ] = "guarded",
    hosts: Annotated[
        Path | None,
        option(
            "JSON file with addresses and ports of the switch, workers, others and the server of atp [default: "
            "worker w at port w].",
            metavar="FILE",
        ),
    ] = None,
    options: Annotated[ServedProgram, option("What is served", "--service", was=["--option"])],
    as_json: JsonOption = False,
) -> None:
    """Write the switch of SwitchML, FPISA or ATP as a P4_16 program, with entries for simple_switch_CLI.

    An interpreter of this subset of P4, part of the tests, checks the types of what is written and runs it on frames.
    No other compiler has seen it.

    \b
    Examples:
      coppice switch export --to p4 --workers 4 --slots 256 -o rack
      coppice switch export --to p4 --hosts hosts.json --values 256 --variant published -o rack
      coppice switch export --to p4 --system fpisa --service mode=approximate -o rack
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.innetwork.p4.generator import export_p4, read_rack

    if to not in SWITCH_TARGETS:
        raise InputError(f"there is no export {to!r}: {suggestion(to, SWITCH_TARGETS)}")
    if system not in P4_SYSTEMS:
        raise InputError(f"there is no `system={system}` to export: {suggestion(system, P4_SYSTEMS)}")
    if variant not in P4_VARIANTS:
        raise InputError(f"there is no `variant={variant}`: {suggestion(variant, P4_VARIANTS)}")
    made = export_p4(
        workers=workers,
        slots=slots,
        values=values,
        variant=cast("Any", variant),
        system=cast("Any", system),
        rack=None if hosts is None else read_rack(hosts),
        **structs.asdict(options),
    )
    made.write(output)
    if as_json:
        print_json(
            "switch-export",
            {
                "to": to,
                "output": str(output),
                "file_names": [made.file_name, "entries.txt"],
                "files": [made.file_name, "entries.txt"],
                "workers": len(made.rack.workers),
                "slots": slots,
                "values_per_packet": made.values,
                "values": made.values,
                "variant": variant,
                "system": system,
            },
        )
        return
    names = {"switchml": "SwitchML", "fpisa": f"FPISA ({options.mode})", "atp": "ATP"}
    sets = "" if system == "atp" else "2 x "
    title = (
        f"{names[system]} for {plural(len(made.rack.workers), 'worker')}, {slots:,} slots of {sets}{made.values} values"
        f"{'' if system == 'atp' else f', {variant}'}"
    )
    print_fields(
        title,
        [
            (
                "program",
                f"{output / made.file_name}, {len(made.program.splitlines()):,} lines of P4_16 for v1model",
            ),
            (
                "entries",
                f"{output / 'entries.txt'}, {len(made.entries.splitlines()):,} lines for simple_switch_CLI",
            ),
            ("checked", "by its own interpreter; no compiler has seen it"),
        ],
    )
