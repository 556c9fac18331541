"""Commands that take objects of options: what Typer sees of them, and what they get."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import pytest
import typer
from typer.testing import CliRunner

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import BoxesOption, JsonOption, TopologyOptions
from coppice.cli.options.measuring import SteppedSizes
from coppice.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Wished:
    colour: str = "red"
    number: int = 3


def test_options_stand_in_the_given_order_and_reach_the_object() -> None:
    got: list[object] = []

    @with_options("topology as_json ... rates boxes")
    def command(where: TopologyOptions, *, size: int = 1, as_json: JsonOption = False) -> None:
        """Its help."""
        got.extend([where, size, as_json])

    assert list(inspect.signature(command).parameters) == ["topology", "as_json", "size", "rates", "boxes"]
    assert inspect.getdoc(command) == "Its help."
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, ["ring", "--boxes", "2", "--json", "--size", "7"])
    assert done.exit_code == 0, done.output
    assert got == [TopologyOptions(topology="ring", boxes=2), 7, True]
    assert CliRunner().invoke(app, ["ring", "--ranks", "0"]).exit_code == 2  # not offered


def test_what_a_command_declares_itself_takes_precedence() -> None:
    got: list[object] = []

    @with_options("topology boxes colour")
    def command(where: TopologyOptions, wish: Wished, *, boxes: BoxesOption = 5) -> None:
        got.extend([where.boxes, boxes, wish])

    command(topology="ring", colour="blue", boxes=5)
    assert got == [None, 5, Wished(colour="blue")]


def test_an_order_leaves_nothing_out() -> None:
    with pytest.raises(TypeError, match="found no size"):

        @with_options("topology")
        def command(where: TopologyOptions, *, size: int = 1) -> None:
            del where, size

    with pytest.raises(KeyError, match="nonsense"):

        @with_options("topology nonsense")
        def other(where: TopologyOptions) -> None:
            del where


def test_sizes_in_steps() -> None:
    assert SteppedSizes(first="1K", last="20K", factor=4).sizes() == [1024, 4096, 16384]
    assert SteppedSizes(first="0", last="1G").sizes() == [0]
    with pytest.raises(InputError, match="exchange them"):
        SteppedSizes(first="2K", last="1K").sizes()
    with pytest.raises(InputError, match="-b of 1 byte or more"):
        SteppedSizes(first="0").sizes(least=1)
