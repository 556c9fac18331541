"""Outputs have one scheme: a format each, schemas that are current, keys that mean one thing and say their unit."""

from __future__ import annotations

import ast
import json
import re
import types
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, NamedTuple, NotRequired, Union, get_args, get_origin

import pytest
import typer
from jsonschema import Draft202012Validator

from cli.conftest import Run
from cli.test_manners import commands
from coppice.cli import app, output
from coppice.cli.output import json_line, print_json, without_key
from coppice.errors import InputError
from coppice.outputs.formats import OUTPUTS, document, format_of
from coppice.outputs.schema import (
    fields_of,
    key_meanings,
    read_schema,
    shape_of,
    shapes_below,
)
from coppice.outputs.shapes.nouns import Exact, ModelJson
from coppice.simulation.models import Model
from support.outputs import checked_document, faults
from support.paths import ROOT

OF_THEIR_OWN = {("AdviceRowJson", "best"), ("AdviceRowJson", "model")}
"""Keys that mean something else in their shape than in all others, as it says itself."""

UNIT = re.compile(
    r"(^|_)(us|seconds|bytes|flops|(gb|gbit|mbit|tflops)_per_s|(bytes|samples|tokens)_per_second|percent)"
    r"(_at_\d+_percent|_by_[a-z]+)?$|_ns_per_byte$"
)
"""Units at the end of a key, also of one by part or at a share of the rate."""


class Field(NamedTuple):
    """A key of a shape."""

    shape: str
    key: str
    kind: str  # Table of keys.toml in which it should stand
    value: str  # Its type, without null
    former: str | None  # The key that replaces it


def bare(hint: Any) -> tuple[Any, str | None]:
    """A type without what says that it may be absent or null, and the key that replaces it."""
    replaced = None
    while True:
        if get_origin(hint) is NotRequired:
            (hint,) = get_args(hint)
        elif get_origin(hint) is Annotated and hint != Exact:
            *kept, meta = hint.__metadata__
            hint = Annotated[(hint.__origin__, *kept)] if kept else hint.__origin__
            found = re.fullmatch(r"Former name of `([\w.]+)`\.", meta.description or "")
            if found is None:  # a meaning of its own
                continue
            assert (meta.extra_json_schema or {}).get("deprecated") is True
            replaced = found[1]
        elif get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint):
            rest = [each for each in get_args(hint) if each is not type(None)]
            hint = Union[tuple(rest)]  # noqa: UP007
        else:
            return hint, replaced


def kind_of(hint: Any) -> str:
    if hint == Exact:
        return "exact"
    if get_origin(hint) is list:
        inner, _ = bare(get_args(hint)[0])
        return "records" if hasattr(inner, "__required_keys__") else "list"
    if get_origin(hint) is dict:
        return "table"
    if get_origin(hint) in (Union, types.UnionType):
        return "choice"
    if hasattr(hint, "__required_keys__"):
        return "record"
    return {str: "text", bool: "flag", int: "count", float: "number"}[hint]


@cache
def shapes() -> dict[str, type]:
    found: dict[str, type] = {}
    for name, declared in OUTPUTS.items():
        if not declared.shape.startswith("coppice."):  # the file that it prints has a description of its own
            found |= shapes_below(shape_of(name))
    return found


@cache
def all_fields() -> tuple[Field, ...]:
    found = []
    for name, shape in shapes().items():
        for key, hint in fields_of(shape).items():
            value, replaced = bare(hint)
            if (name, key) in OF_THEIR_OWN:
                assert replaced is None
                continue
            found.append(Field(name, key, kind_of(value), str(value), replaced))
    return tuple(found)


def current_fields() -> Iterator[Field]:
    return (each for each in all_fields() if each.former is None)


def calls() -> Iterator[str]:
    """Names of outputs that commands print, as the source has them."""
    for path in sorted((ROOT / "src" / "coppice" / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                place = {"print_json": 0, "json_line": 0, "_say": 1}.get(node.func.id)
                if place is not None and len(node.args) > place:
                    found = [each for each in ast.walk(node.args[place]) if isinstance(each, ast.Constant)]
                    yield from (each.value for each in found if each.value in OUTPUTS)
                    if node.func.id != "_say" and not isinstance(node.args[place], ast.Name):
                        assert {each.value for each in found if isinstance(each.value, str)} <= set(
                            OUTPUTS
                        ), path


def test_all_outputs_are_printed_by_some_command() -> None:
    assert set(calls()) == set(OUTPUTS)


def test_all_commands_with_json_are_described() -> None:
    found = {
        words.removeprefix("coppice ")
        for words, command in commands()
        if any("--json" in each.opts for each in command.params)
    }
    described = {re.sub(r" (-.*)$", "", command) for each in OUTPUTS.values() for command in each.commands}
    lazy = typer.main.get_command(app).commands
    groups = {name for name in lazy if getattr(lazy.get(name), "commands", None)}
    callable_groups = {
        name for name in groups if any("--json" in each.opts for each in lazy.get(name).params)
    }
    assert found | callable_groups == described


def test_outputs_are_named_otherwise_than_files() -> None:
    paths = [each for each in (ROOT / "src" / "coppice").rglob("*.py") if "outputs" not in each.parts]
    sources = (path.read_text() for path in paths)
    files = {name for text in sources for name in re.findall(r'"(coppice-[a-z-]+)"', text)}
    assert {"coppice-plan", "coppice-topology", "coppice-jobs"} <= files
    assert not {format_of(name) for name in OUTPUTS} & files


@pytest.mark.parametrize("output", OUTPUTS)
def test_schemas_are_valid(output: str) -> None:
    schema = read_schema(output)
    Draft202012Validator.check_schema(schema)
    assert list(schema["properties"])[:2] == ["format", "version"]
    for part in (schema, *schema.get("$defs", {}).values()):
        assert part["additionalProperties"] is False
        assert part["description"]


@pytest.mark.parametrize("output", [name for name in OUTPUTS if name != "train-job"])
def test_keys_say_when_they_are_null(output: str) -> None:
    schema = read_schema(output)
    for part in (schema, *schema.get("$defs", {}).values()):
        for key, each in part["properties"].items():
            if not each.get("deprecated"):
                nullable = {"type": "null"} in each.get("anyOf", ())
                told = re.search(r"\bnull\b", each["description"]) is not None
                either = "null or" in each["description"]
                assert told is nullable or (told and either), (key, each["description"])


def test_every_key_has_one_meaning() -> None:
    known = [key for keys in key_meanings().values() for key in keys]
    assert len(known) == len(set(known))
    assert set(known) == {each.key for each in current_fields()}


def test_few_keys_have_a_meaning_of_their_own() -> None:
    """Descriptions in a shape are those of former names, or of the keys that are listed here."""
    found = {
        (name, key)
        for name, shape in shapes().items()
        for key, hint in fields_of(shape).items()
        for meta in getattr(hint, "__metadata__", ())[-1:]
        if hint != Exact and not (meta.description or "").startswith("Former name of ")
    }
    assert found == OF_THEIR_OWN


def test_every_key_has_one_kind_of_value() -> None:
    kinds = {key: kind for kind, keys in key_meanings().items() for key in keys}
    wrong = [
        f"{each.shape}.{each.key} is {each.kind}, described as {kinds[each.key]}"
        for each in current_fields()
        if (each.kind if each.kind != "number" else kinds[each.key]) != kinds[each.key]
        and not (kinds[each.key] == "quantity" and each.kind == "count")
    ]
    assert not wrong, "\n".join(wrong)
    for each in current_fields():
        if each.kind == "number":
            assert kinds[each.key] in ("number", "quantity"), each


def test_scalars_and_shared_records_have_one_type() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for each in current_fields():
        if each.kind not in ("record", "records", "table"):
            found[each.key].add(each.value)
    assert {key: values for key, values in found.items() if len(values) > 1} == {}


@pytest.mark.parametrize("kind", ["quantity", "number", "count", "exact"])
def test_units_are_in_keys(kind: str) -> None:
    for key in key_meanings()[kind]:
        if kind == "exact":  # of shares and of bandwidth times, which have no unit
            shares = {"loss", "loss_by_pieces", "loss_with_trees", "max_link_load", "t_b", "t_b_least"}
            rounds = key.startswith(("rounds", "least_rounds"))
            assert bool(UNIT.search(key)) is not (key in shares or "share" in key or rounds), key
        else:
            assert bool(UNIT.search(key)) is (kind == "quantity"), key


def test_rates_say_which_they_are() -> None:
    """Plain names of rates are former ones; those that are confused have names of their own."""
    rates = {each.key for each in current_fields() if re.search(r"(alg|bus)bw|inv_rate", each.key)}
    which = ("optimum_", "load_", "steady_", "reached_", "ring_", "limit_", "finish_", "makespan_")
    which += ("before_", "unmoved_")  # of faults
    assert {key for key in rates if not key.startswith(which)} == set()


def test_former_names_stand_beside_the_new_ones() -> None:
    by_shape: dict[str, dict[str, Field]] = defaultdict(dict)
    for each in all_fields():
        by_shape[each.shape][each.key] = each
    for each in all_fields():
        if each.former is None:
            continue
        head, _, inner = each.former.partition(".")
        target = by_shape[each.shape][head]
        if inner:
            record, _ = bare(fields_of(shapes()[each.shape])[head])
            target = by_shape[record.__name__][inner]
        assert target.former is None, each
        if each.former != "parameter_list":  # whose records have one form now
            assert target.value == each.value, (each, target)


def test_models_are_described_whole() -> None:
    assert set(fields_of(ModelJson)) == {each.name for each in fields(Model)} | {"text"}


SOUND = {"labs": ["lab"], "namespaces": 3}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"stray": 1}, "stray"),
        ({"labs": "lab"}, "not of type 'array'"),
        ({"labs": [1]}, "not of type 'string'"),
        ({"namespaces": "three"}, "not of type 'integer'"),
        ({"version": 2}, "1 was expected"),
        ({"format": "coppice-lab-output"}, "required"),
        ({"format": "coppice-plan"}, "no output has the format"),
    ],
)
def test_faults_are_seen(change: dict[str, Any], fault: str) -> None:
    sound = document("lab-down", SOUND)
    assert faults(sound) == []
    assert fault in "\n".join(faults({**sound, **change}))


def test_missing_keys_are_seen() -> None:
    assert "'labs' is a required property" in faults(document("lab-down", {}))[0]


def test_tests_hold_commands_to_their_schemas(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that prints another key fails its tests."""
    from coppice.cli.catalogue import model

    assert output.document is checked_document
    assert run("model", "list", "--json").code == 0
    monkeypatch.setattr(model, "model_record", lambda _: {"name": "x"})
    with pytest.raises(AssertionError, match="'overhead_us' is a required property"):
        run("model", "list", "--json")


def test_infinite_numbers_are_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Should one ever come: JSON has none, and readers would refuse the whole."""
    monkeypatch.setattr(output, "document", document)
    print_json("lab-down", {"labs": [float("inf"), {"a": (float("nan"), 1.5)}]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["labs"] == [
        None,
        {"a": [None, 1.5]},
    ]
    assert json.loads(json_line("lab-down", {"labs": [float("inf")]}))["labs"] == [None]


def test_what_is_not_finite_is_no_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        checked_document("lab-down", {"labs": [float("inf")]})


def test_schemas_are_printed(run: Run) -> None:
    assert json.loads(run("schema", "bound").out) == read_schema("bound")
    assert run("schema", "coppice-bound-output").out == run("schema", "bound").out
    listed = run("schema", "--json").json["outputs"]
    assert isinstance(listed, list)
    assert [each["name"] for each in listed] == list(OUTPUTS)
    assert "bound --groups" in run("schema").out
    wrong = run("schema", "bonud")
    assert wrong.code == 2
    assert "did you mean 'bound'?" in wrong.err


def test_unknown_outputs_are_refused() -> None:
    with pytest.raises(InputError, match="there is no output"):
        read_schema("coppice-plan")


def test_lines_are_documents() -> None:
    line = json_line("switch-event", {"event": "job", "what": "opened"})
    assert "\n" not in line
    assert faults(json.loads(line)) == []
    assert without_key({"a": 1, "b": 2}, "a") == {"b": 2}


def test_kinds_are_told_apart() -> None:
    hints = (Exact, int, float | None, list[str], list[ModelJson], dict[str, int], ModelJson, int | str)
    kinds = ["exact", "count", "number", "list", "records", "table", "record", "choice"]
    assert [kind_of(bare(each)[0]) for each in hints] == kinds
