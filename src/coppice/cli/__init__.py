"""The `coppice` command: one file per subcommand, thin over the Python API.

Results go to standard output, plain when it is no terminal; progress and errors go to standard error. Exit
codes: 0 done, 1 a check failed or a plan does not fit, 2 usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import coppice
from coppice.cli.algorithms import algorithms
from coppice.cli.bench import bench
from coppice.cli.bound import bound
from coppice.cli.compare import compare
from coppice.cli.design import app as design
from coppice.cli.doctor import doctor
from coppice.cli.explain import explain
from coppice.cli.export import export
from coppice.cli.importing import import_file
from coppice.cli.lab import app as lab
from coppice.cli.logs import logs
from coppice.cli.plan import plan
from coppice.cli.probe import probe
from coppice.cli.report import report
from coppice.cli.select import select
from coppice.cli.simulate import simulate
from coppice.cli.topology import app as topology
from coppice.cli.train import app as train
from coppice.cli.tune import app as tune
from coppice.cli.verify import verify
from coppice.errors import CheckError, CoppiceError

__all__ = ["app", "main"]

CHECK_FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


class Commands(TyperGroup):
    """The group of all commands; it turns errors into one sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except CoppiceError as error:
            raise _failed(str(error), CHECK_FAILED if isinstance(error, CheckError) else BAD_INPUT) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _discard_stdout()
            raise typer.Exit(CHECK_FAILED) from None
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            msg = f"cannot use the file{where}: {error.strerror or error}."
            raise _failed(msg, BAD_INPUT) from None
        except MemoryError:
            msg = "not enough memory for this size: plan fewer ranks."
            raise _failed(msg, BAD_INPUT) from None
        return result


def _failed(message: str, code: int) -> typer.Exit:
    """Print ``message`` as one line on standard error; the exit to raise."""
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    return typer.Exit(code)


def _discard_stdout() -> None:
    """Let Python flush standard output into the void when it exits: the reader is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _print_version(*, value: bool) -> None:
    if value:
        typer.echo(f"coppice {coppice.__version__}")
        raise typer.Exit


app = typer.Typer(
    name="coppice",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def coppice_command(
    version: Annotated[  # noqa: FBT002 (the command line knows flags by name)
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Find the provably fastest way to run a collective on a cluster, and prove it.

    A topology is a preset name (`coppice topology list`) or a file; a plan is a file. `-` stands for standard
    input or output, and `--json` prints JSON to standard output.

    \b
    Examples:
      coppice topology show dgx-a100 --boxes 2
      coppice bound dgx-a100 --boxes 2 --collective all_gather
      coppice plan dgx-a100 --boxes 2 --collective all_reduce -o plan.json
      coppice verify plan.json
      coppice explain plan.json
      coppice simulate plan.json --size 1M
      coppice compare dgx-h100 --boxes 4 --collective all_reduce --sizes 1K:4G
      coppice report plan.json -o report.html
      coppice export plan.json --to msccl-xml --target msccl -o algo.xml
      coppice doctor algo.xml --target msccl
      coppice select --library nccl dgx-h100 --boxes 4 --collective all_reduce --size 1M --why
      coppice design --ranks 64 --degree 4
      torchrun --nproc-per-node 8 -m coppice bench all_reduce --algorithm forest,ring,native
    """  # noqa: D301 (\b is for the help formatter)


app.add_typer(topology, name="topology")
app.add_typer(lab, name="lab")
app.add_typer(design, name="design")
app.add_typer(train, name="train")
app.add_typer(tune, name="tune")
app.command("bound")(bound)
app.command("plan")(plan)
app.command("algorithms")(algorithms)
app.command("verify")(verify)
app.command("explain")(explain)
app.command("simulate")(simulate)
app.command("compare")(compare)
app.command("select")(select)
app.command("export")(export)
app.command("import")(import_file)
app.command("doctor")(doctor)
app.command("report")(report)
app.command("bench")(bench)
app.command("logs")(logs)
app.command("probe")(probe)


def main() -> None:
    """Run the command line."""
    app(prog_name="coppice")
