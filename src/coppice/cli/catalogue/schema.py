"""`coppice schema`: list the formats of JSON that commands print, and print the schema of one."""

from __future__ import annotations

import json
from typing import Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output import print_fields, print_json, print_lines, write_text
from coppice.errors import InputError
from coppice.options import argument
from coppice.options.shared import JsonOption, OutputOption


@with_options()
def schema(
    name: Annotated[
        str | None,
        argument("Print the JSON schema of this output, such as bound or coppice-bound-output."),
    ] = None,
    *,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the formats of JSON that commands print with --json, or print the JSON schema of one.

    \b
    Examples:
      coppice schema
      coppice schema plan -o plan.schema.json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.outputs.formats import OUTPUTS, format_of
    from coppice.outputs.schema import read_schema

    if name is not None:
        write_text(json.dumps(read_schema(name), indent=1, ensure_ascii=False) + "\n", output)
        return
    if output is not None:
        raise InputError(
            f"expected an output whose schema goes to {output}, found none: name one, such as bound."
        )
    if as_json:
        rows = [
            {
                "name": output,
                "output_format": format_of(output),
                "output_version": found.version,
                "commands": list(found.commands),
                "lines": found.lines,
                "summary": read_schema(output)["description"],
            }
            for output, found in OUTPUTS.items()
        ]
        print_json("schema", {"outputs": rows})
        return
    print_fields(
        "Formats of JSON, and the commands that print them",
        [(output, ", ".join(found.commands)) for output, found in OUTPUTS.items()],
    )
    print_lines(["", "`coppice schema NAME` prints the JSON schema of one."])
