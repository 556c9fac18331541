"""Sockets and counters inside the namespaces of a lab, without a process for each."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from coppice.errors import InputError
from coppice.run.lab.namespaces import Lab

__all__ = ["entered", "link_bytes"]

_CLONE_NEWNET = 0x40000000


@contextlib.contextmanager
def entered(lab: Lab, node: int) -> Iterator[None]:
    """The calling thread is in the namespace of ``node``: sockets that it makes there stay there.

    Raises:
        InputError: If the lab went away, or the rights are missing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        try:
            there = os.open(Path("/run/netns") / lab.namespace(node), os.O_RDONLY)
        except FileNotFoundError:
            msg = f"the namespace {lab.namespace(node)} is gone: build the lab again with `coppice lab up`."
            raise InputError(msg) from None
        try:
            _enter(libc, there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(libc, home)
    finally:
        os.close(home)


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, _CLONE_NEWNET):
        reason = os.strerror(ctypes.get_errno())
        msg = f"entering a network namespace failed ({reason}): it needs root."
        raise InputError(msg)


class _Counter(msgspec.Struct):
    bytes: int = 0


class _Counters(msgspec.Struct):
    tx: _Counter = msgspec.field(default_factory=_Counter)


class _Interface(msgspec.Struct):
    ifname: str
    stats64: _Counters = msgspec.field(default_factory=_Counters)


def link_bytes(lab: Lab) -> dict[tuple[int, int], int]:
    """Bytes that every directed link has carried since the lab was built, headers included, as the kernel counts."""
    ends: dict[int, dict[str, int]] = {}
    for cable in lab.blueprint.cables:
        for node, other in ((cable.near, cable.far), (cable.far, cable.near)):
            ends.setdefault(node, {})[cable.end(node)[0]] = other
    found: dict[tuple[int, int], int] = {}
    for node, names in ends.items():
        shown = subprocess.run(
            ["ip", "-n", lab.namespace(node), "-s", "-j", "link", "show"],
            capture_output=True,
            check=False,
            start_new_session=True,
        )
        if shown.returncode:
            complaint = shown.stderr.decode(errors="replace").strip()
            msg = f"the namespace {lab.namespace(node)} cannot be read ({complaint}): build the lab again."
            raise InputError(msg)
        for interface in msgspec.json.decode(shown.stdout, type=list[_Interface]):
            if interface.ifname in names:
                found[node, names[interface.ifname]] = interface.stats64.tx.bytes
    return found
