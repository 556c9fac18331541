"""The `coppice` command: a file for a subcommand, or for a few of one kind; thin over the Python API.

Results go to standard output, plain when it is no terminal; progress and errors go to standard error. Exit
codes: 0 done, 1 a check failed or a plan does not fit, 2 usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from coppice.cli.options.usage import read_former_flags, read_plainly, usage_words
from coppice.cli.terminal import broken, interrupted_words, keeps, terminal_width, use_terminal_characters
from coppice.errors import CheckError, CoppiceError
from coppice.interrupts import handled, loading, running
from coppice.version import __version__

__all__ = ["COMMANDS", "Commands", "app", "command_named", "main", "with_flags"]

CHECK_FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


_STYLE: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}


class Place(NamedTuple):
    """Location of a command's function."""

    attribute: str  # Module and name of its function, or of the app of a group
    summary: str  # What it does, for the list of commands, so short that no terminal cuts it


COMMANDS = {
    "topology": Place("coppice.cli.topology:app", "List, show, import, compose, subset, degrade topologies."),
    "bound": Place(
        "coppice.cli.bound:bound", "Print the optimal rate of a collective, and its bottleneck cut."
    ),
    "plan": Place("coppice.cli.plan.command:plan", "Plan a collective, verify the plan, print its rate."),
    "degrade": Place(
        "coppice.cli.plan.degrade:degrade", "Compute what faults cost, and plan for what is left."
    ),
    "synthesize": Place(
        "coppice.cli.synthesize:synthesize", "Find a schedule by a published method, and rate it."
    ),
    "claims": Place(
        "coppice.cli.catalogue.claims:claims", "Measure what was published, and judge each claim."
    ),
    "placement": Place(
        "coppice.cli.placement:placement", "Map parallel axes to GPUs, and choose how to reduce along them."
    ),
    "algorithms": Place(
        "coppice.cli.catalogue.algorithms:algorithms",
        "List the algorithms that `coppice plan --algorithm` takes.",
    ),
    "compile": Place(
        "coppice.cli.compiling:compile_file", "Compile a collective written in Python to a plan."
    ),
    "verify": Place(
        "coppice.cli.verify:verify", "Check by counting that a plan or program does what it claims."
    ),
    "explain": Place("coppice.cli.report:explain", "Explain a plan: its bottleneck, link loads and trees."),
    "simulate": Place("coppice.cli.simulate:simulate", "Simulate a plan over sizes, with its critical path."),
    "compare": Place("coppice.cli.compare:compare", "Compare all algorithms over sizes with the bounds."),
    "model": Place("coppice.cli.catalogue.model:app", "List, show and fit time models."),
    "select": Place("coppice.cli.select:select", "Predict the algorithm that a library picks for a call."),
    "advise": Place("coppice.cli.advise:advise", "Advise on what to change today for the library installed."),
    "export": Place(
        "coppice.cli.export:export", "Write a plan or tuning for a runtime, a library, a launcher."
    ),
    "import": Place("coppice.cli.importing:import_file", "Convert a file of MSCCL or MSCCL++ to a plan."),
    "doctor": Place("coppice.cli.doctor:doctor", "Check whether a runtime will load a file and use it."),
    "report": Place("coppice.cli.report:report", "Draw a plan and its topology: a page or a picture."),
    "bench": Place("coppice.cli.bench:bench", "Benchmark algorithms against the installed library."),
    "probe": Place("coppice.cli.probe:probe", "Measure the network between launched processes."),
    "diagnose": Place(
        "coppice.cli.diagnose:app", "Find what is slow in a cluster, or broken in a job by its logs."
    ),
    "lab": Place("coppice.cli.lab:app", "Emulate a topology on this machine, run programs in it."),
    "switch": Place("coppice.cli.switch:app", "Run and model in-network aggregation."),
    "schema": Place(
        "coppice.cli.catalogue.schema:schema", "List the formats of JSON output, print their schemas."
    ),
    "logs": Place("coppice.cli.logs:app", "Read logs and results of libraries, compare two runs."),
    "design": Place("coppice.cli.design:app", "Design direct-connect networks."),
    "train": Place("coppice.cli.train:app", "Simulate training iterations, report on training logs."),
    "tune": Place("coppice.cli.tune:app", "Tune the installed library: measure, fit, deploy rules."),
}
"""Where each command is, and what it does: the help of the program shows that without loading any."""

GROUPS = {
    "Describe a cluster": ("topology", "probe", "diagnose", "lab"),
    "Bound, plan and compare": (
        *("bound", "plan", "degrade", "synthesize", "placement", "algorithms"),
        *("compile", "verify", "explain"),
        *("simulate", "compare", "claims", "model", "select", "advise", "report"),
    ),
    "Export and run": ("export", "import", "doctor", "bench", "tune", "logs", "schema"),
    "Train, design networks, use switches": ("train", "design", "switch"),
}
"""The commands by what people do, as the help of the program lists them."""


def command_named(name: str) -> Any:
    """Function of a command, or app of a command group, importing its module.

    Raises:
        KeyError: If there is none.
    """
    module, _, attribute = COMMANDS[name].attribute.partition(":")
    return getattr(import_module(module), attribute)


class _LazyCommands(dict[str, Any]):
    """All commands by name; one that is not asked for costs nothing."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(COMMANDS))

    def get(self, name: str, default: Any = None) -> Any:
        """The command, made when it is asked for the first time."""
        if name in self and self[name] is None:
            self[name] = _made(name)
        return super().get(name, default)


@cache  # a program that runs many commands in one process makes each once
def _made(name: str) -> Any:
    """What typer makes of a command."""
    with loading():
        found = command_named(name)
    outer = typer.Typer(add_completion=False, **_STYLE)
    if isinstance(found, typer.Typer):
        outer.add_typer(found, name=name)
        made = typer.main.get_group(outer).commands[name]
    else:
        outer.command(name)(found)
        made = typer.main.get_command(outer)
    read_former_flags(made)
    read_plainly(made)
    return made


class Commands(TyperGroup):
    """Root command group that reports an error as one sentence and an exit code."""

    def make_context(self, *words: Any, **given: Any) -> Any:
        """Read the options of the program itself."""
        if "get_params" not in self.__dict__:
            read_plainly(self)
        try:
            return super().make_context(*words, **given)
        except TyperException as error:
            raise _misused(error) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        keeps(None)
        try:
            with running():
                result = super().invoke(ctx)
                sys.stdout.flush()
        except CoppiceError as error:
            code = CHECK_FAILED if isinstance(error, CheckError) else BAD_INPUT
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            raise _failed(with_flags(str(error), _flags(command)), code) from None
        except TyperException as error:
            raise _misused(error) from None
        except KeyboardInterrupt:
            words = interrupted_words()
            if words is not None or sys.stderr.isatty():
                typer.echo(f"interrupted: {words or 'no file was left half-written'}.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _discard_stdout()
            raise typer.Exit(CHECK_FAILED) from None
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            raise _failed(f"cannot use the file{where}: {error.strerror or error}.", BAD_INPUT) from None
        except MemoryError:
            raise _failed("not enough memory for this size: plan fewer ranks.", BAD_INPUT) from None
        return result


def _flags(command: Any) -> dict[str, str]:
    """Options of a command, or of all commands of a group, by their names in Python."""
    found: dict[str, str] = {}
    for inner in getattr(command, "commands", {}).values():
        found |= _flags(inner)
    for each in getattr(command, "params", ()):
        found.update((each.name, name) for name in reversed(each.opts) if name.startswith("--"))
    return found


def with_flags(message: str, flags: Mapping[str, str]) -> str:
    """Replace keyword arguments in a library message (`trees=1`) by command-line options.

    What the command has no option for stands as it is, or becomes a parameter of the topology where it has those.

    Args:
        message: The message.
        flags: Options of the command by their names in Python.

    Examples:
        >>> with_flags("leave out `relay_gpus` or take `trees=4`.", {"relay_gpus": "--relay-gpus", "trees": "--trees"})
        'leave out `--relay-gpus` or take `--trees 4`.'
        >>> with_flags("name the model (`gpu=a100`).", {"settings": "--set"})
        'name the model (`--set gpu=a100`).'
    """

    def flag(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name in flags:
            return f"`{flags[name]}`" if value is None else f"`{flags[name]} {value}`"
        return (
            f"`{flags['settings']} {name}={value}`" if value is not None and "settings" in flags else found[0]
        )

    return re.sub(r"`([a-z]\w*)(?:=([^`]+))?`", flag, message)


def _misused(error: TyperException) -> Exception:
    """What to raise for words that a command does not take; a group without any shows its help."""
    return error if type(error).__name__ == "NoArgsIsHelpError" else _failed(usage_words(error), BAD_INPUT)


def _failed(message: str, code: int) -> typer.Exit:
    """Print ``message`` as one line on standard error; the exit to raise."""
    words = f"error: {' '.join(message.split())}"
    for line in broken(words, terminal_width(sys.stderr)):
        typer.echo(line, err=True)
    return typer.Exit(code)


def _discard_stdout() -> None:
    """Let Python flush standard output into the void when it exits: the reader is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _print_version(*, value: bool) -> None:
    if value:
        typer.echo(f"coppice {__version__}")
        raise typer.Exit


class AllCommands(Commands):
    """Lazy command group: a command's module is imported on use."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": _LazyCommands()})
        self._listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Command by name; for listings a stub with name and summary."""
        if self._listing and cmd_name in COMMANDS:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name].summary)
        return super().get_command(ctx, cmd_name)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The commands by what people do, and the options: all on one screen of a terminal."""
        lines = []
        for title, names in GROUPS.items():
            lines += [f"{title}:", *(f"  {name:<10}  {COMMANDS[name].summary}" for name in names)]
        options = [max(option.opts, key=len) for option in self.get_params(ctx)]
        formatter.write("".join(f"{line}\n" for line in [*lines, f"Options: {', '.join(options)}"]))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Completions of commands and options."""
        with self._names_only():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _names_only(self) -> Iterator[None]:
        """Load no command meanwhile."""
        self._listing = True
        try:
            yield
        finally:
            self._listing = False


app = typer.Typer(
    name="coppice",
    cls=AllCommands,
    no_args_is_help=True,
    **_STYLE,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback(
    help="Find the provably fastest way to run a collective on a cluster, and prove it. TOPOLOGY is a preset, a file "
    "or -. First: `coppice plan star`."
)
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
      coppice design --num-ranks 64 --degree 4
      torchrun --nproc-per-node 8 -m coppice bench all_reduce --algorithm forest,ring,native
    """  # noqa: D301 (\b is for the help formatter)


def main() -> None:
    """Run the command line."""
    use_terminal_characters()
    try:
        app(prog_name="coppice")
    finally:
        handled()
