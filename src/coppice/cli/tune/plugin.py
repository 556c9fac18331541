"""`coppice tune plugin`: the tuner plugin by which NCCL and RCCL read our tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coppice.cli.output.render import print_lines
from coppice.tuning.plugin_build import NAME, TABLE_VARIABLE, build_plugin

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="The tuner plugin by which NCCL and RCCL read a tuner table.")


@app.callback()
def plugin() -> None:
    """The tuner plugin by which NCCL and RCCL read a tuner table."""


@app.command("build")
def build(
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="File to write.")] = Path(
        NAME
    ),
    compiler: Annotated[
        str | None,
        typer.Option(
            "--cc", metavar="COMMAND", help="C11 compiler [default: $CC, else cc].", show_default=False
        ),
    ] = None,
) -> None:
    """Compile the plugin: C11, without CUDA and NCCL; API versions 3 to 6, that is NCCL 2.22 and later.

    It changes a call only where a line of the table holds and the library offers what the line names.

    \b
    Examples:
      coppice tune plugin build -o libnccl-tuner-coppice.so
    """  # noqa: D301 (\b is for the help formatter)
    path = build_plugin(output, compiler=compiler)
    print_lines(
        [
            f"written to {path}",
            f"use:  export NCCL_TUNER_PLUGIN={path} {TABLE_VARIABLE}=/path/of/table.csv",
            "undo: unset NCCL_TUNER_PLUGIN",
        ]
    )
