"""Launch programs in a lab: a process per rank in the namespace of its GPU, an MPI launcher, aggregation switches."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import IO

import numpy as np

from coppice.errors import CheckError, InputError
from coppice.innetwork.serving.udp import SWITCH_VARIABLE
from coppice.innetwork.switch_trees import SwitchTrees
from coppice.run.lab.namespaces import IDENTITY, Lab
from coppice.run.processes import end_with_parent, stop
from coppice.topology.model import NodeKind, Topology

_PORT = 29500
_GRACE_S = 20.0
"""How long the others may go on after one rank failed: their own errors say more than a signal."""

_LAST_WORDS_S = 3.0
_POLL_S = 0.02

Writer = Callable[[str], None]


def launch_ranks(
    lab: Lab,
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    # Address of the aggregating switch of each rank, as :func:`~coppice.run.lab.launch.standing_switches`
    # gives them
    switches: Sequence[str] = (),
    timeout_s: float | None = None,  # After so many seconds all are stopped
    out: IO[str] | None = None,  # Where standard output goes (default: this process's)
    err: IO[str] | None = None,
) -> None:
    """Run ``command`` once per rank, with torchrun's environment variables.

    Rank 0's output passes as it is; that of the others is marked with the rank. Whatever ends the run (a failure, the
    timeout, Ctrl-C), no process of it stays.
    """
    ranks = range(lab.blueprint.topology.num_ranks)
    nodes = lab.blueprint.rank_nodes
    own = [{SWITCH_VARIABLE: address} for address in switches] or [{} for _ in ranks]
    processes: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    lock = threading.Lock()
    try:
        for rank in ranks:
            process = subprocess.Popen(
                ["ip", "netns", "exec", lab.namespace(nodes[rank]), *command],
                env={**os.environ, **_variables(lab, rank), **own[rank], **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGKILL),
            )
            processes.append(process)
            for stream, sink in ((process.stdout, out or sys.stdout), (process.stderr, err or sys.stderr)):
                if stream is not None:
                    reader = threading.Thread(target=_copy, args=(stream, sink, rank, lock), daemon=True)
                    reader.start()
                    readers.append(reader)
        failed = _watch(processes, timeout_s)
    finally:
        stop(processes, last_words_s=_LAST_WORDS_S)
        for reader in readers:
            reader.join(timeout=1.0)
    if failed is not None:
        raise CheckError(failed)


def _variables(lab: Lab, rank: int) -> dict[str, str]:
    nodes = lab.blueprint.rank_nodes
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(nodes)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "MASTER_ADDR": lab.blueprint.identity[nodes[0]],
        "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": IDENTITY,
        "NCCL_SOCKET_IFNAME": IDENTITY,
        "COPPICE_TOPOLOGY": str(lab.topology_file),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _copy(stream: IO[str], sink: IO[str], rank: int, lock: threading.Lock) -> None:
    mark = f"[{rank}] " if rank else ""
    with stream:
        for line in stream:
            with lock:
                sink.write(mark + line)
                sink.flush()


def _watch(processes: Sequence[subprocess.Popen[str]], timeout_s: float | None) -> str | None:
    """Wait for all; what failed, in words."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    first: str | None = None
    while True:
        codes = [process.poll() for process in processes]
        now = time.monotonic()
        if first is None:
            bad = [rank for rank, code in enumerate(codes) if code]
            if bad:
                first = (
                    f"expected every rank to exit with 0, found rank {bad[0]} with {_code(codes[bad[0]])}."
                )
                grace = now + _GRACE_S
                deadline = grace if deadline is None else min(deadline, grace)
        if None not in codes:
            return first
        if deadline is not None and now > deadline:
            running = [str(rank) for rank, code in enumerate(codes) if code is None]
            return first or f"ranks {', '.join(running)} still ran after {timeout_s:g} s: they were stopped."
        time.sleep(_POLL_S)


def _code(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return str(code)


def launch_mpi(
    lab: Lab,
    library: str,  # `open-mpi` or `mpich`
    command: Sequence[str],
    *,
    launcher: str | None = None,  # Path of the launcher (default: the one of PATH)
    options: Sequence[str] = (),
    # Further variables, for the launcher and, where the launcher hands them on, the ranks
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,  # After so many seconds all are stopped
    quiet: bool = False,  # What the ranks print is dropped
) -> None:
    """Run ``command`` under ``mpirun`` (Open MPI 5) or ``mpiexec`` (MPICH) with one process per rank, over TCP.

    Every node takes the host name ``r<rank>`` in its own namespace, and an agent takes the place of ssh.
    """
    agent, first = _write_agent(lab), lab.namespace(lab.blueprint.rank_nodes[0])
    hosts = [f"r{rank}" for rank in range(lab.blueprint.topology.num_ranks)]
    variables = {
        key: value
        for key, value in _variables(lab, 0).items()
        if key in ("COPPICE_TOPOLOGY", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")
    } | dict(environment or {})
    if library == "open-mpi":
        start = [
            *(launcher or "mpirun", "--allow-run-as-root", "-n", str(len(hosts))),
            *("--host", ",".join(f"{host}:1" for host in hosts), "--bind-to", "none"),
            *("--prtemca", "plm_ssh_agent", str(agent), "--prtemca", "oob_tcp_if_include", IDENTITY),
            *("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", IDENTITY),
            *("--mca", "mpi_yield_when_idle", "1"),
            *(word for key in variables for word in ("-x", key)),
        ]
    elif library == "mpich":
        start = [
            *(launcher or "mpiexec", "-n", str(len(hosts)), "-hosts", ",".join(hosts)),
            *("-launcher", "ssh", "-launcher-exec", str(agent), "-iface", IDENTITY),
        ]
        variables |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": IDENTITY}
    else:
        raise InputError(f"expected the library open-mpi or mpich, found {library!r}: choose one of them.")
    process = subprocess.Popen(
        ["ip", "netns", "exec", first, str(agent), "r0", shlex.join([*start, *options, *command])],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if quiet else None,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
        start_new_session=True,
        preexec_fn=end_with_parent(signal.SIGKILL),
    )
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise CheckError(f"`{library}` still ran after {timeout_s:g} s: it was stopped.") from None
    finally:
        stop([process], last_words_s=_LAST_WORDS_S)
        _clear(lab)
    if process.returncode:
        raise CheckError(
            f"expected the launcher of {library} to exit with 0, found {_code(process.returncode)}."
        )


def _write_agent(lab: Lab) -> Path:
    """The stand-in for ssh: the command on the named host, which sees its own host name and /etc/hosts."""
    blueprint = lab.blueprint
    lines = ["127.0.0.1 localhost"]
    cases = []
    for rank, node in enumerate(blueprint.rank_nodes):
        lines.append(f"{blueprint.identity[node]} r{rank}")
        cases.append(f"  r{rank}) space={lab.namespace(node)} ;;")
    hosts = lab.directory / "hosts"
    hosts.write_text("\n".join(lines) + "\n")
    agent = lab.directory / "agent"
    agent.write_text(
        "\n".join(
            [
                "#!/bin/sh",
                "# HOST COMMAND...: runs the command in the namespace of the host, as ssh would on the machine.",
                'while [ "${1#-}" != "$1" ]; do shift; done',
                "host=$1; shift",
                "case $host in",
                *cases,
                '  *) echo "no host $host in this lab" >&2; exit 1 ;;',
                "esac",
                (
                    "exec ip netns exec $space unshare --uts --mount sh -c "
                    f'\'mount --bind {shlex.quote(str(hosts))} /etc/hosts && hostname "$0" && exec sh -c "$1"\' '
                    '"$host" "$*"'
                ),
                "",
            ]
        )
    )
    agent.chmod(0o755)
    return agent


def _clear(lab: Lab) -> None:
    """Stop what a launcher that was stopped left behind in the lab (its daemons detach themselves)."""
    for node in lab.blueprint.rank_nodes:
        found = subprocess.run(
            ["ip", "netns", "pids", lab.namespace(node)], capture_output=True, text=True, check=False
        )
        for pid in found.stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue


_SWITCH_PORT = 9000
_STARTS_S = 30.0
_SWITCH_LAST_WORDS_S = 2.0


def switch_parents(topology: Topology) -> tuple[dict[int, int], list[int]]:
    """Aggregation tree over the switches for all ranks.

    The tree whose busiest link is busy for the shortest time, if every switch could add; where a switch of it would
    have ranks as well as switches below it, its root alone.

    Returns:
        The switch above each switch, -1 above the root; and the switch of each rank.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> switch_parents(preset("star", gpus=3))
        ({3: -1}, [3, 3, 3])
    """
    switches: list[int] = np.flatnonzero(topology.kind == NodeKind.SWITCH).tolist()
    ranks: list[int] = topology.rank_nodes.tolist()
    tree = SwitchTrees(topology, switches).best(
        ranks, load=[Fraction(0)] * topology.num_links, share=Fraction(1)
    )
    if tree is None:
        raise InputError(
            f"expected a switch that all ranks of {topology.name!r} reach without other GPUs, found none."
        )
    below_ranks = {tree.above[rank] for rank in ranks}
    parents = {tree.root: -1}
    for node in sorted(below_ranks):
        while node != tree.root:
            parents[node] = tree.above[node]
            node = tree.above[node]
    if below_ranks & {parent for parent in parents.values() if parent >= 0}:
        return {tree.root: -1}, [tree.root] * len(ranks)
    return parents, [tree.above[rank] for rank in ranks]


@contextmanager
def standing_switches(
    lab: Lab, protocol: str, *, slots: int = 256, options: Sequence[str] = ()
) -> Iterator[list[str]]:
    """Run the switches, and yield each rank's switch address.

    Args:
        slots: Sums that can be under way in each.
        options: Further words for `coppice switch serve`.
    """
    parents, of_rank = switch_parents(lab.blueprint.topology)
    address = {node: f"{lab.blueprint.identity[node]}:{_SWITCH_PORT}" for node in parents}
    processes: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for node in _from_the_root(parents):
            own = ["--host", lab.blueprint.identity[node], "--port", str(_SWITCH_PORT), "--slots", str(slots)]
            parent = parents[node]
            if parent >= 0:
                siblings = [each for each in sorted(parents) if parents[each] == parent]
                own += ["--parent", address[parent], "--index", str(siblings.index(node))]
                own += ["--siblings", str(len(siblings))]
            processes[node] = subprocess.Popen(
                [
                    *("ip", "netns", "exec", lab.namespace(node), sys.executable, "-m", "coppice"),
                    *("switch", "serve", "--system", protocol, *own, *options),
                ],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGTERM),
            )
        for node, process in processes.items():
            _await(process, lab.blueprint.topology.node_ids[node])
        yield [address[node] for node in of_rank]
    finally:
        stop(list(processes.values()), last_words_s=_SWITCH_LAST_WORDS_S)
        for process in processes.values():
            if process.stdout is not None:
                process.stdout.close()


def _from_the_root(parents: Mapping[int, int]) -> list[int]:
    """Switches, each behind the one above it."""

    def depth(node: int) -> int:
        return 0 if parents[node] < 0 else 1 + depth(parents[node])

    return sorted(parents, key=lambda node: (depth(node), node))


def _await(process: subprocess.Popen[bytes], name: str) -> None:
    """Return when a switch listens."""
    deadline = time.monotonic() + _STARTS_S
    said = b""
    assert process.stdout is not None
    while b"listening" not in said:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        more = os.read(process.stdout.fileno(), 4096) if ready else b""
        said += more
        if not more:
            words = said.decode(errors="replace").strip() or f"nothing within {_STARTS_S:g} s"
            raise CheckError(f"expected the switch {name} to listen, found: {words}")
