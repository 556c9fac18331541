"""`coppice switch export` and the files that it reads and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coppice.errors import InputError
from coppice.innetwork.p4.generator import export_p4, read_rack
from innetwork.frames import Request
from reference.p4.control_plane import load_commands
from reference.p4.device import P4Switch
from reference.p4.language.programs import read_program
from support.pages import coppice

HOSTS: dict[str, Any] = {
    "switch": {"mac": "02:00:00:00:00:01", "ipv4": "10.0.0.254"},
    "workers": [
        {"mac": "02:00:00:00:01:00", "ipv4": "10.0.0.1", "port": 7},
        {"mac": "02:00:00:00:01:01", "ipv4": "10.0.0.2", "port": 3},
    ],
    "others": [{"mac": "02:00:00:00:09:00", "port": 5}],
}


def test_written_files_run(tmp_path: Path) -> None:
    """What is on the disk is enough: ports are those of the hosts."""
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps(HOSTS))
    folder = tmp_path / "deep" / "rack"
    done = coppice("switch", "export", "--to", "p4", "--hosts", hosts, "--slots", "8", "-o", folder, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["files"] == sorted(each.name for each in folder.iterdir())[::-1]
    switch = P4Switch(read_program((folder / "switchml.p4").read_text()), num_ports=8)
    load_commands(switch, (folder / "entries.txt").read_text())
    values = tuple(range(64))
    assert switch.receive(7, Request(0, 1, 0, values, id=1).frame()) == []
    assert [port for port, _ in switch.receive(3, Request(1, 1, 0, values, id=1).frame())] == [7, 3]
    assert switch.registers["SwitchIngress.value_63"] == {1: 126}
    broadcast = b"\xff" * 6 + bytes.fromhex("0200000001010806") + b"who has"
    assert [port for port, _ in switch.receive(3, broadcast)] == [5, 7]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("switch", "mac"), "02:00:00:00:01", r"\$.switch: expected a MAC address"),
        (("workers", 0, "ipv4"), "10.0.0.256", r"\$.workers\[0\]: Octet 256"),
        (("workers", 1, "mac"), "02:00:00:00:01:00", r"\$.workers\[1\] has the address of another"),
        (("workers", 1, "ipv4"), "10.0.0.254", r"\$.workers\[1\] has the address of another"),
        (("workers", 1, "port"), 511, r"\$.workers\[1\]: expected a port of 0 .. 510, found 511"),
        (("workers", 1, "port"), "7", r"Expected `int`, got `str` - at `\$.workers\[1\].port`"),
        (("workers",), [], "expected 1 to 32 workers, found 0"),
        (("color",), "red", "unknown field `color`"),
        (("others", 0, "port"), -1, r"\$.others\[0\]: expected a port"),
    ],
)
def test_hosts_that_are_refused(tmp_path: Path, path: tuple[Any, ...], value: object, words: str) -> None:
    changed = json.loads(json.dumps(HOSTS))
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    file = tmp_path / "hosts.json"
    file.write_text(json.dumps(changed))
    with pytest.raises(InputError, match=words):
        read_rack(file)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--to p5 -o x", "there is no export 'p5': use one of p4."),
        ("--to p4 --variant guard -o x", "there is no `--variant guard`: did you mean 'guarded'?"),
        ("--to p4 --workers 33 -o x", "expected `--workers` of 1 .. 32, found 33"),
        ("--to p4 --workers 0 -o x", "expected `--workers` of 1 .. 32, found 0"),
        ("--to p4 --slots 8193 -o x", "expected `--slots` of 1 .. 8,192, found 8,193"),
        ("--to p4 --values 128 -o x", "expected `--values` of 64 or 256, found 128"),
        ("--to p4 --system atp --values 64 -o x", "expected `--values` of 62, found 64"),
        (
            "--to p4 --system sharp -o x",
            "there is no `--system sharp` to export: use one of switchml, fpisa, atp",
        ),
        ("--to p4 --system fpisa --service mode=exact -o x", "expected mode to be one of full, approximate"),
        ("--to p4 --option job=256 -o x", "expected `job` of 0 .. 255, found 256"),
        ("--to p4 --hosts nowhere.json -o x", "cannot read the hosts nowhere.json"),
    ],
)
def test_options_that_are_refused(options: str, words: str) -> None:
    done = coppice("switch", "export", *options.split())
    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.parametrize("system", ["fpisa", "atp"])
def test_files_of_other_systems(tmp_path: Path, system: str) -> None:
    """A file of hosts with a server serves all systems; what is written can be read."""
    hosts = tmp_path / "hosts.json"
    hosts.write_text(
        json.dumps(HOSTS | {"server": {"mac": "02:00:00:00:02:00", "ipv4": "10.0.0.9", "port": 6}})
    )
    done = coppice(
        "switch", "export", "--to", "p4", "--system", system, "--hosts", hosts, "-o", tmp_path, "--json"
    )
    assert json.loads(done.stdout)["file_names"] == [f"{system}.p4", "entries.txt"]
    switch = P4Switch(read_program((tmp_path / f"{system}.p4").read_text()), num_ports=8)
    load_commands(switch, (tmp_path / "entries.txt").read_text())
    assert switch.groups[2][-1].port == 7


def test_a_rack_of_others_workers() -> None:
    with pytest.raises(InputError, match="expected 3 workers in the rack, found 2"):
        export_p4(workers=3, rack=export_p4(workers=2, slots=1).rack)
