"""Read a job file (TOML); errors are one sentence that names the key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.files import read_text
from coppice.iteration.job.job import TrainingJob, job_of
from coppice.iteration.job.tables import FORMER_POLICY_KEYS, JobRecord
from coppice.text import suggestion

_PLACE = re.compile(r"^(?P<words>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)


def read_job(path: Path | str) -> TrainingJob:
    """Read a job from a TOML file.

    Files that it names (topology, device) are looked for beside it.

    Args:
        path: The file; ``-`` is standard input.
    """
    return job_of(read_job_record(path), folder=Path(path).parent)


def read_job_record(path: Path | str, *, note: Callable[[str], None] | None = None) -> JobRecord:
    """Read the tables of a job file.

    Args:
        note: Takes a note on keys that have another name now.
    """
    return parse_job_record(read_text(path, what="the job"), where=str(path), note=note)


def parse_job_record(text: str, *, where: str, note: Callable[[str], None] | None = None) -> JobRecord:
    r"""Parse the tables of a job file.

    Policies of a file that names them by ``run.order``, ``run.overlap`` and ``run.inside`` become those of
    ``run.policy``.

    Args:
        text: The file.
        where: Where it is from, for messages.
        note: Takes a note on each key that has another name now.

    Examples:
        >>> parse_job_record("run.order = 'gpipe'\nrun.overlap = 'ddp'", where="a.toml").run.policy
        'gpipe+ddp'

        >>> parse_job_record("[layout]\ncp = 2", where="a.toml").layout.cp
        2
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"expected TOML in {where}, found otherwise: {error}.") from None
    return _converted(_with_one_policy(data, where, note), where)


def _with_one_policy(data: dict[str, Any], where: str, note: Callable[[str], None] | None) -> dict[str, Any]:
    """Tables whose policies are all named by one key."""
    run = data.get("run")
    if not isinstance(run, dict) or not run.keys() & FORMER_POLICY_KEYS:
        return data
    names: list[str] = []
    former: list[str] = []
    for key in ("policy", *FORMER_POLICY_KEYS):
        if key not in run:
            continue
        value = run[key]
        if not isinstance(value, str):
            if key == "policy":
                return data  # which is refused like any other value
            raise InputError(
                f"`run.{key}`: expected a string ({FORMER_POLICY_KEYS[key]}), found {_shown(value)} in {where}."
            )
        names += [name for each in value.split("+") if (name := each.strip()) != "none"]
        if key != "policy":
            former.append(f"run.{key}")
    if note is not None:
        note(f"note: {' and '.join(former)} {'is' if len(former) == 1 else 'are'} now run.policy in {where}.")
    kept = {key: value for key, value in run.items() if key not in FORMER_POLICY_KEYS}
    return {**data, "run": {**kept, "policy": "+".join(names) or "none"}}


def with_values(record: JobRecord, values: Mapping[str, Mapping[str, object]]) -> JobRecord:
    """Override keys of a record, by table; None keeps a value.

    Examples:
        >>> tp = parse_job_record("layout.tp = 8", where="a.toml")
        >>> both = with_values(tp, {"layout": {"tp": None, "pp": 2}}).layout
        >>> both.tp, both.pp
        (8, 2)
    """
    data = msgspec.to_builtins(record)
    for table, keys in values.items():
        given = {key: value for key, value in keys.items() if value is not None}
        data[table] = data.get(table, {}) | given
    return _converted(data, "the options")


def _converted(data: Mapping[str, Any], where: str) -> JobRecord:
    """Convert plain values to the tables."""
    _refuse_unknown(data, where)
    try:
        return msgspec.convert(data, type=decodable(JobRecord))
    except msgspec.ValidationError as error:
        raise InputError(_sentence(str(error), data, where)) from None


def job_keys() -> Iterator[tuple[str, str, str, str]]:
    """Every key of a job file with its table, values and meaning."""
    for table in msgspec.structs.fields(JobRecord):
        for field in _fields(table.type):
            values, meaning = _values_and_meaning(field.type)
            yield table.name, field.name, values, meaning


@cache
def _fields(struct: Any) -> tuple[Any, ...]:
    return msgspec.structs.fields(struct)


def _values_and_meaning(hint: Any) -> tuple[str, str]:
    """Values of a key as text, and its meaning."""
    found: Any = msgspec.inspect.type_info(hint)
    meaning = ""
    if isinstance(found, msgspec.inspect.UnionType):
        found = next(each for each in found.types if not isinstance(each, msgspec.inspect.NoneType))
    while isinstance(found, msgspec.inspect.Metadata):
        meaning = meaning or (found.extra_json_schema or {}).get("description", "")
        found = found.type
    return _words(found), meaning


def _words(found: Any) -> str:
    """Values of a type as text."""
    kinds = msgspec.inspect
    if isinstance(found, kinds.Metadata):
        return _words(found.type)
    if isinstance(found, kinds.BoolType):
        return "true or false"
    if isinstance(found, kinds.IntType):
        return f"an integer{_range(found)}"
    if isinstance(found, kinds.FloatType):
        return f"a number{_range(found)}"
    if isinstance(found, kinds.LiteralType):
        return "one of " + ", ".join(str(each) for each in found.values)
    if isinstance(found, kinds.DictType):
        return "a table"
    if isinstance(found, kinds.ListType):
        return "an array of " + ("strings" if isinstance(found.item_type, kinds.StrType) else "tables")
    return "a string" if isinstance(found, kinds.StrType) else "a table"


def _range(found: Any) -> str:
    """Valid numbers of a type as text."""
    if found.gt is not None:
        return f" above {found.gt:g}" if found.le is None else f" above {found.gt:g} and up to {found.le:g}"
    if found.ge is None:
        return ""
    return f" of {found.ge:g} or more" if found.le is None else f" from {found.ge:g} to {found.le:,.0f}"


def _refuse_unknown(data: Mapping[str, Any], where: str) -> None:
    """Refuse an unknown table or key, and suggest a similar one."""
    tables = {each.name: _fields(each.type) for each in msgspec.structs.fields(JobRecord)}
    for name, content in data.items():
        if name not in tables:
            homes = [table for table, fields in tables.items() if name in [each.name for each in fields]]
            hint = f"write it under [{homes[0]}]." if homes else suggestion(name, tables)
            raise InputError(f"`{name}`: expected a table of a job, found it in {where}: {hint}")
        if not isinstance(content, dict):
            raise InputError(
                f"`{name}`: expected a table, found {content!r} in {where}: write [{name}] and its keys below it."
            )
        known = [each.name for each in tables[name]]
        for key in content:
            if key not in known:
                homes = [table for table, fields in tables.items() if key in [each.name for each in fields]]
                hint = f"write it under [{homes[0]}]." if homes else suggestion(key, known)
                raise InputError(
                    f"`{name}.{key}`: expected a key of [{name}], found an unknown one in {where}: {hint}"
                )


def _sentence(error: str, data: Mapping[str, Any], where: str) -> str:
    """Rewrite msgspec's validation error as a sentence about a key."""
    match = _PLACE.match(error)
    words, path = (match["words"], match["path"] or "") if match else (error, "")
    keys = [each for each in re.split(r"[.\[\]]+", path) if each]
    found: Any = data
    for key in keys:
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdigit():
            found = found[int(key)]
    if len(keys) == 2:
        table = next(each for each in msgspec.structs.fields(JobRecord) if each.name == keys[0])
        field = next(each for each in _fields(table.type) if each.name == keys[1])
        values, meaning = _values_and_meaning(field.type)
        return f"`{path}`: expected {values} ({meaning}), found {_shown(found)} in {where}."
    return f"`{path}`: {words[:1].lower()}{words[1:]}, in {where}."


def _shown(value: object) -> str:
    """Value as written in the file."""
    return str(value).lower() if isinstance(value, bool) else repr(value)
