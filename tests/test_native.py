"""Native extensions: what an installation without one of them says, and that no module goes round that."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from coppice import native
from coppice.errors import MissingExtraError
from support.paths import ROOT


@pytest.mark.parametrize("name", ["_run", "_switch"])
def test_a_missing_extension_says_what_builds_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"coppice.{name}", None)
    with pytest.raises(
        MissingExtraError, match=rf"needs the native extension {name} \(.*\).*run `make setup`"
    ):
        getattr(native, name)


def test_any_other_name_is_none_of_its_own() -> None:
    with pytest.raises(AttributeError, match="no attribute '_core'"):
        native._core  # noqa: B018


def test_the_command_line_prints_it_as_a_sentence() -> None:
    program = "import sys; sys.modules['coppice._switch'] = None; from coppice.cli import main; main()"
    command = [sys.executable, "-c", program, "switch", "check", "--system", "switchml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: this needs the native extension _switch .*\n", done.stderr.replace("\n", " ").strip() + "\n"
    )


def test_modules_take_them_from_one_place() -> None:
    direct = re.compile(
        r"from coppice import .*\b(_run|_switch)\b|from coppice\.(_run|_switch) import|import coppice\.(_run|_switch)"
    )
    source = ROOT / "src" / "coppice"
    found = [
        path for path in source.rglob("*.py") if path.name != "native.py" and direct.search(path.read_text())
    ]
    assert not found
