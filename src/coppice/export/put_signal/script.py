"""Export a plan as one Python file that runs its put/signal program with NumPy only."""

from __future__ import annotations

import base64
import re
import textwrap
import zlib
from collections.abc import Callable
from importlib import resources

from coppice.export.exported import Exported
from coppice.export.formats import PutSignalScriptOptions
from coppice.export.put_signal.document import put_signal_json
from coppice.export.put_signal.program import provenance_of, verified_put_signal
from coppice.schedule.plan import Plan
from coppice.text import plural

_EMPTY = 'PROGRAM = ""\n'
_FUTURE = "from __future__ import annotations\n"
_WIDTH = 110


def export_put_signal_script(
    plan: Plan, options: PutSignalScriptOptions, *, on_stage: Callable[[str], None] = lambda _: None
) -> Exported:
    """Export a Python script that runs a plan over nccl4py, torch, or as threads on NumPy arrays.

    The script is the modules of :mod:`coppice.export.put_signal.standalone` with the program in them.
    """
    program = verified_put_signal(plan, options, on_stage=on_stage)
    on_stage("writing the script")
    provenance = provenance_of(plan)
    text = put_signal_json(program, provenance=provenance)
    packed = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    held = "\n".join(textwrap.wrap(packed, _WIDTH, break_on_hyphens=False))
    parts = resources.files("coppice.export.put_signal.standalone")
    source = parts.joinpath("emulator.py").read_text().replace(_EMPTY, f'PROGRAM = """\n{held}\n"""\n', 1)
    for name in ("gpus.py", "command.py"):
        following = parts.joinpath(name).read_text().partition(_FUTURE)[2]
        source += re.sub(r"(?m)^from coppice[^)]*\)\n", "", following)
    first = (
        f"#!/usr/bin/env python3\n# {program.name}: {program.collective} on {plural(program.num_ranks, 'rank')}, "
        f"planned by Coppice {provenance['coppice']} ({provenance['planner']}).\n"
    )
    return Exported(
        text=first + source,
        notes=(
            "`python FILE` runs all ranks on NumPy arrays, `torchrun ... FILE --engine nccl4py` or `torch` on GPUs.",
            f"it holds {plural(program.num_operations, 'operation')}, and needs no Coppice.",
        ),
        suffix=".py",
    )
