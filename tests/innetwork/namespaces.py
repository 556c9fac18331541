"""Network namespaces with a switch in one, and workers at virtual cables in others."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from coppice.errors import InputError
from coppice.innetwork.xdp.switch import XdpHosts, XdpPass, XdpWorker

_NETWORK = 0x40000000  # CLONE_NEWNET


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread in a namespace."""
    library = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as before, Path("/run/netns", namespace).open() as there:
        assert library.setns(there.fileno(), _NETWORK) == 0
        try:
            yield
        finally:
            assert library.setns(before.fileno(), _NETWORK) == 0


def ip(*words: object) -> None:
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"ip {' '.join(map(str, words))}: {done.stderr.strip()}")


@contextmanager
def rack(workers: int) -> Iterator[tuple[str, list[str], XdpHosts]]:
    """Names of the namespaces of the switch and of the workers, and the hosts for the switch.

    The other ends of the cables let frames of XDP pass.
    """
    if os.geteuid() != 0 or any(shutil.which(each) is None for each in ("clang", "ip")):
        pytest.skip("needs root, clang and ip")
    switch = f"coppice-xdp-{os.getpid()}"
    names = [f"{switch}-{worker}" for worker in range(workers)]
    with ExitStack() as stack:
        for each in (switch, *names):
            ip("netns", "add", each)
            stack.callback(subprocess.run, ["ip", "netns", "del", each], check=False)
        for worker, name in enumerate(names):
            ip("-n", switch, "link", "add", f"s{worker}", "type", "veth", "peer", "name", "w", "netns", name)
            ip("-n", switch, "link", "set", f"s{worker}", "address", f"02:00:00:00:02:{worker:02x}", "up")
            ip("-n", name, "link", "set", "w", "address", f"02:00:00:00:01:{worker:02x}", "up")
            ip("-n", name, "address", "add", f"10.0.0.{worker + 1}/24", "dev", "w")
            neighbour = ("10.0.0.254", "lladdr", f"02:00:00:00:02:{worker:02x}")
            ip("-n", name, "neighbour", "add", *neighbour, "dev", "w", "nud", "permanent")
            with inside(name):
                try:
                    stack.enter_context(XdpPass("w"))
                except InputError as error:
                    pytest.skip(str(error))
        hosts = tuple(
            XdpWorker(f"02:00:00:00:01:{w:02x}", f"10.0.0.{w + 1}", f"s{w}") for w in range(workers)
        )
        yield switch, names, XdpHosts("10.0.0.254", hosts)
