"""Rules about messages that libraries print before they fail: each with its cause and remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from coppice.diagnosis.recorded.hanging_rules import TEXTS
from coppice.diagnosis.recorded.records import RUN_RULES, RunRecords, process_of
from coppice.doctor.framework import ERROR, Complaint
from coppice.text import plural


class KnownMessage(NamedTuple):
    """What a library prints, and what it means."""

    rule: str
    title: str
    why: str
    pattern: re.Pattern[str]
    cause: str  # With the names of the pattern's groups in braces
    fix: str


def _of(rule: str, title: str, why: str, pattern: str, cause: str, fix: str) -> KnownMessage:
    return KnownMessage(rule, title, why, re.compile(pattern, re.IGNORECASE), cause, fix)


KNOWN_MESSAGES = (
    _of(
        *("E01", "messages that arrive", "NCCL ends with ncclRemoteError"),
        r"Got completion from peer (?P<peer>\S+?)(?:<\d+>)? with (?:error|status=)\s*(?:\S*\()?"
        r"(?:12\b|IBV_WC_RETRY_EXC)(?:.*?\bhca (?P<hca>[\w.]+))?",
        "messages of {hca} to {peer} were not acknowledged (retries exceeded): the peer is gone, or a cable, port or "
        "switch between them is down",
        "look at the peer's log and at `ibstat`, `ethtool -S` on both ends; NCCL_IB_TIMEOUT=22 bridges short "
        "outages only",
    ),
    _of(
        *("E02", "ports that stay up", "messages are lost until it returns"),
        r"NET/IB ?: (?P<hca>\S+?)(?::\d+)? Got (?:non-fatal |fatal )?async (?:fatal )?event ?: (?P<event>port error|"
        r"link.?down|GID table change|local QP operation error|QP fatal error|device fatal[^.]*)",
        "{hca} reports: {event}",
        "look at cable, transceiver and switch port of this device (`mlxlink`, `dmesg`)",
    ),
    _of(
        *("E03", "peers that can be reached", "communicators are not made"),
        r"(?:connect(?: to| returned)?|socket\w*Connect\w*)\b.{0,80}?(?:(?P<peer>[\w.:-]+)<\d+>)?.{0,80}?"
        r"(?P<reason>No route to host|Connection refused|Connection timed out|Network is unreachable)",
        "a process cannot connect to {peer}: {reason}",
        "choose an interface that all hosts share (NCCL_SOCKET_IFNAME), and open its ports in firewalls; a peer that "
        "ended refuses as well",
    ),
    _of(
        *("E04", "peers that live", "this is what others see of it"),
        r"(?:Connection closed by remote peer|Net : Connection .*closed by) (?P<peer>[^\s<]+)",
        "the process on {peer} went away first",
        "look at the log of that host: the first error there is the cause",
    ),
    _of(
        *("E05", "room in /dev/shm", "communicators are not made"),
        r"(?:Error while creating shared memory segment|shm.*(?:No space left on device|failed to extend))",
        "shared memory is too small",
        "give containers more of it: `docker run --shm-size=1g --ulimit memlock=-1`, an emptyDir of medium Memory",
    ),
    _of(
        *("E06", "memory that may be locked", "NICs cannot register buffers"),
        r"(?:ibv_reg_mr|ibv_create_cq|ibv_create_qp|reg_mr_iova2?)\b.{0,60}?(?:Cannot allocate memory|errno 12)",
        "the limit of locked memory is too low",
        "raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity in the service, `--ulimit memlock=-1` of containers",
    ),
    _of(
        *("E07", "memory on the GPU", "communicators are not made"),
        r"(?:Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA (?:calloc|malloc))",
        "the GPU has no memory left for NCCL's buffers",
        "leave some to it: make communicators before the model fills the GPU, lower NCCL_BUFFSIZE or NCCL_MAX_CTAS",
    ),
    _of(
        *("E08", "a GPU for each rank", "communicators are refused"),
        r"Duplicate GPU detected ?: rank (?P<one>\d+) and rank (?P<other>\d+)",
        "ranks {one} and {other} use one GPU",
        "set the device by the local rank (torch.cuda.set_device, CUDA_VISIBLE_DEVICES)",
    ),
    _of(
        *("E09", "one version of NCCL", "communicators are refused, or hang"),
        r"Mismatched NCCL version detected",
        "ranks run different versions of NCCL",
        "start all ranks from one image; look for another libnccl in LD_LIBRARY_PATH",
    ),
    _of(
        *("E10", "an interface to begin with", "communicators are not made"),
        r"Bootstrap ?: no socket interface found",
        "NCCL_SOCKET_IFNAME names no interface of this host",
        "look at `ip -br addr`; a name is a prefix, `=` before it demands the whole, `^` excludes",
    ),
    _of(
        *("E11", "queue pairs that connect", "communicators are not made"),
        r"ibv_modify_qp (?:failed|.*failed) with (?:error )?(?P<reason>Connection timed out|No route to host|Invalid "
        r"argument|Network is unreachable)",
        "a queue pair cannot be connected ({reason}): the address (GID) is not reached by the other NIC",
        "on RoCE set NCCL_IB_GID_INDEX to the RoCE v2 entry (`show_gids`), and NCCL_IB_HCA to NICs of one network",
    ),
    _of(
        *("E12", "libraries of the network", "TCP carries what NICs could"),
        r"(?:Failed to open libibverbs|NET/IB ?: No device found)",
        "NCCL found no InfiniBand or RoCE device",
        "put rdma-core into the container and pass /dev/infiniband through; without such NICs all is well",
    ),
)


def _rule(message: KnownMessage) -> Callable[[RunRecords], Iterator[Complaint]]:
    def check(records: RunRecords) -> Iterator[Complaint]:
        where: tuple[str, int] | None = None
        who: dict[str, None] = {}
        words: dict[str, None] = {}
        for file, line in records.spoken():
            match = message.pattern.search(line.text)
            if match is None:
                continue
            where = where or (file, line.number)
            process = process_of(line.text)
            who.setdefault("" if process is None else process[0])
            told = {name: value or "a peer" for name, value in match.groupdict().items()}
            words.setdefault(message.cause.format(**told))
        if where is None:
            return
        hosts = [host for host in who if host]
        seen = f" (seen on {', '.join(hosts[:4])}{', ...' if len(hosts) > 4 else ''})" if hosts else ""
        more = f", and {plural(len(words) - 3, 'other')}" if len(words) > 3 else ""
        yield where, f"{'; '.join(list(words)[:3])}{more}{seen}", message.fix

    return check


for _each in KNOWN_MESSAGES:
    RUN_RULES.rule(_each.rule, ERROR, _each.title, _each.why, needs=TEXTS)(_rule(_each))
