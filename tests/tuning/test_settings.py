"""A site's settings: the compiled plugin and Python refuse the same files; jobs get what they do not set themselves."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coppice.errors import InputError
from coppice.tuning.building import build_plugin, compiler_found, read_settings, settings_text
from support.pages import coppice

needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or compiler_found(language="C++17") is None,
    reason="the plugin is C++ for Linux, and there is no compiler here: install one or set CXX",
)

ASK = """
import ctypes, json, os, sys
library, version, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
lines = []
logger_type = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)
logger = logger_type(lambda level, topics, file, line, words, text: lines.append((level, topics, text.decode())))
name, init, finalize, get = (ctypes.c_void_p * 4).in_dll(ctypes.CDLL(library), f"ncclEnvPlugin_v{version}")
byte = ctypes.c_uint8
more = (logger_type,) if version == 2 else ()
code = ctypes.CFUNCTYPE(ctypes.c_int, byte, byte, byte, ctypes.c_char_p, *more)(init)(
    2, 32, 3, b"", *((logger,) if more else ()))
ask = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_char_p)(get)
answers = {each: (lambda found: None if found is None else found.decode())(ask(each.encode())) for each in names}
ended = ctypes.CFUNCTYPE(ctypes.c_int)(finalize)()
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
own = (libc.getenv(b"COPPICE_TUNER_TABLE") or b"").decode()
print(json.dumps({"code": code, "ended": ended, "answers": answers, "lines": lines, "table": own}))
"""

REAL = """
import ctypes, sys
nccl, number = ctypes.CDLL(sys.argv[1]), ctypes.create_string_buffer(128)
print(nccl.ncclGetUniqueId(number), number.raw.hex())
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_plugin(tmp_path_factory.mktemp("env") / "libnccl-env-coppice.so", kind="env")


def run(script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("NCCL_", "COPPICE_"))
    }
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, **variables},
    )


@needs_compiler
@pytest.mark.parametrize("version", [1, 2])
def test_a_job_gets_what_it_does_not_set(library: Path, tmp_path: Path, version: int) -> None:
    site = tmp_path / "site.conf"
    site.write_text("# site\nNCCL_ALGO=Ring\nNCCL_PROTO=LL\nNCCL_BUFFSIZE=\nCOPPICE_TUNER_TABLE=/site.csv\n")
    names = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS")
    told = json.loads(
        run(
            ASK, str(library), str(version), *names, COPPICE_NCCL_SETTINGS=str(site), NCCL_PROTO="Simple"
        ).stdout
    )
    assert (told["code"], told["ended"]) == (0, 0)
    assert told["answers"] == {
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "Simple",
        "NCCL_BUFFSIZE": "",
        "NCCL_NTHREADS": None,
    }
    assert told["table"] == "/site.csv"
    if version == 2:
        assert "4 settings, behind the environment of the job" in str(told["lines"])
    own = run(ASK, str(library), "2", COPPICE_NCCL_SETTINGS=str(site), COPPICE_TUNER_TABLE="/own.csv")
    assert json.loads(own.stdout)["table"] == "/own.csv"


BAD = {
    "NCCL_ALGO": "expected NAME=VALUE",
    "PATH=/bin": "expected a name of NCCL_, RCCL_ or COPPICE_",
    "NCCL_=1": "expected a name",
    "NCCL_algo=Ring": "expected a name",
    "NCCL_ALGO =Ring": "expected a name",
    "NCCL_DEBUG=INFO": "expected each name once",
}


@needs_compiler
@pytest.mark.parametrize("line", BAD)
def test_a_bad_file_is_refused_as_a_whole_by_both(library: Path, tmp_path: Path, line: str) -> None:
    site = tmp_path / "site.conf"
    site.write_text(f"\nNCCL_DEBUG=WARN\n{line}\n")
    told = json.loads(run(ASK, str(library), "2", "NCCL_DEBUG", COPPICE_NCCL_SETTINGS=str(site)).stdout)
    assert (told["code"], told["answers"]) == (0, {"NCCL_DEBUG": None})
    assert told["lines"][0][0] == 2
    assert f"{site}:3: {BAD[line]}" in told["lines"][0][2]
    assert f"{site}:3: {BAD[line]}" in run(ASK, str(library), "1", COPPICE_NCCL_SETTINGS=str(site)).stderr
    with pytest.raises(InputError, match=rf"site\.conf:3: {BAD[line]}"):
        read_settings(site.read_bytes(), file="site.conf")


@needs_compiler
def test_a_missing_file_is_a_warning_only_where_it_was_asked_for(library: Path, tmp_path: Path) -> None:
    told = json.loads(
        run(ASK, str(library), "2", "HOME", COPPICE_NCCL_SETTINGS=str(tmp_path / "none")).stdout
    )
    assert told["code"] == 0
    assert "cannot be read: no settings" in told["lines"][0][2]
    if not Path("/etc/coppice/nccl.conf").exists():
        assert json.loads(run(ASK, str(library), "2").stdout)["lines"] == []


def test_what_is_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuner.csv").touch()
    (tmp_path / "tuner.so").touch()
    given = {
        "NCCL_ALGO": "Ring",
        "COPPICE_TUNER_TABLE": "tuner.csv",
        "NCCL_TUNER_PLUGIN": "./tuner.so",
        "NCCL_NET_PLUGIN": "coppice",
    }
    text = settings_text(given, notes=["by hand"])
    assert text.startswith("# by hand\n")
    assert read_settings(text.encode()) == {
        **given,
        "COPPICE_TUNER_TABLE": str(tmp_path / "tuner.csv"),
        "NCCL_TUNER_PLUGIN": str(tmp_path / "tuner.so"),
    }
    for bad, words in (
        ({"NCCL_ENV_PLUGIN": "coppice"}, "before there is a plugin"),
        ({"NCCL_DEBUG": "INFO"}, "before there is a plugin"),
        ({"COPPICE_TUNER_TABLE": "none.csv"}, "expected a file at 'none.csv'"),
        ({"NCCL_NET_PLUGIN": "./none.so"}, "expected a file"),
        ({"LD_PRELOAD": "x"}, "expected a name"),
        ({"NCCL_ALGO": "a\nb"}, "one line"),
    ):
        with pytest.raises(InputError, match=words):
            settings_text(bad)


@pytest.mark.parametrize("name", ["NCCL_NET_PLUGIN", "NCCL_GIN_PLUGIN", "NCCL_RMA_PLUGIN"])
def test_plugins_may_be_several(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run in other directories: each file of a list gets its whole name, names of plugins stay."""
    monkeypatch.chdir(tmp_path)
    for file in ("one.so", "two.so", "odd,name.so"):
        (tmp_path / file).touch()
    told = {
        "./one.so,aws-ofi,two.so": f"{tmp_path}/one.so,aws-ofi,{tmp_path}/two.so",
        "aws-ofi, none": "aws-ofi,none",
        "./one.so": f"{tmp_path}/one.so",
        "odd,name.so": f"{tmp_path}/odd,name.so",
    }
    for given, expected in told.items():
        assert read_settings(settings_text({name: given}).encode()) == {name: expected}
    with pytest.raises(InputError, match=r"expected a file at './three\.so'"):
        settings_text({name: "one.so,./three.so"})


def test_the_command_writes_what_the_plugin_reads(tmp_path: Path) -> None:
    site = tmp_path / "site.conf"
    done = coppice("tune", "plugin", "settings", "NCCL_ALGO=Ring", "NCCL_PROTO=Simple", "-o", str(site))
    assert done.exit_code == 0, done.output
    assert f"COPPICE_NCCL_SETTINGS={site}" in done.output
    assert read_settings(site.read_bytes()) == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    assert coppice("tune", "plugin", "settings", "PATH=/bin").exit_code == 2
    bare = coppice("tune", "plugin", "settings", "NCCL_ALGO")
    assert "expected the argument KEY=VALUE, found 'NCCL_ALGO'" in bare.output


def test_there_are_three_kinds_of_plugins(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no plugin 'nets'"):
        build_plugin(tmp_path / "p.so", kind="nets")
    with pytest.raises(InputError, match=r"a C\+\+ compiler, found no 'no-such'"):
        build_plugin(tmp_path / "p.so", kind="env", compiler="no-such")


def real_nccl() -> Path | None:
    """NCCL's library, where its package is installed or COPPICE_NCCL_LIBRARY names it."""
    if given := os.environ.get("COPPICE_NCCL_LIBRARY"):
        return Path(given)
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    for place in (found.submodule_search_locations or ()) if found else ():
        if (library := Path(place) / "lib" / "libnccl.so.2").is_file():
            return library
    return None


@needs_compiler
@pytest.mark.skipif(
    real_nccl() is None, reason="the package of NCCL is not installed (nvidia-nccl-cu12, 2.28.7 or later)"
)
def test_nccl_itself_takes_the_settings(library: Path, tmp_path: Path) -> None:
    site = tmp_path / "site.conf"
    site.write_text("NCCL_COMM_ID=127.0.0.1:45671\n")
    given = {"NCCL_ENV_PLUGIN": str(library), "COPPICE_NCCL_SETTINGS": str(site), "NCCL_SOCKET_IFNAME": "lo"}
    done = run(REAL, str(real_nccl()), **given, NCCL_DEBUG="INFO")
    assert done.returncode == 0, done.stderr
    assert "ENV/Plugin: Using Coppice" in done.stdout
    assert "b2677f000001" in done.stdout.split()[-1], "port and address of the site's settings"
    own = run(REAL, str(real_nccl()), **given, NCCL_COMM_ID="127.0.0.1:4097")
    assert "10017f000001" in own.stdout.split()[-1], "the job's own"
