"""Cutting of steps into messages by runtimes, and the sizes up to which a program terminates.

A connection has a buffer of 8 steps. A message takes 4 of them with the protocol Simple, and 1 with LL and LL128, so
that a connection holds 2 messages, or 8. Of the M bytes of a call, cut into C slots, a message carries as many slots as
fit into its part of the buffer, up to 71, and 1 at least: a slot that does not fit is carried in several passes over
the whole program. A pass uses bytes that no other pass uses, and ends with all connections empty; where one comes to an
end, all do.

**Fewer slots in a message only hang more.** Let a step be cut into k parts in one run, and into j <= k in another, with
the same depth d, and let the first come to an end. In its order of events, let part i of the second run take place when
part i + k - j of the step does. Thread blocks keep their order; what depends on a step begins after its last part;
a part is received after it was sent. Between a part and the one d places before it on its connection there are d parts
or more in the first run, which was done with the earlier one before it began the later: so there is room in the second
run as well. Hence the sizes that hang are those from one on, and :func:`fewest_together` finds it by bisection.

Two more things stop a run, whatever the steps are:

* **Proxies.** Loaders tell the threads that serve the network how many steps a message takes: 1 instead of 4 for
  broadcast and reduce with Simple, where kernels take 4 all the same. These threads then stop after a quarter of the
  steps: connections between hosts deadlock. Loaders also cut their messages as if buffers were a quarter.
* **Passes.** A flag that announces a step counts up to 65,536 passes. Beyond that, what waits for one waits for ever.

Read from the kernels, parsers and proxies of microsoft/msccl 0.7, msccl-executor-nccl 2.23 and RCCL 2.21.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.program.dialects.thread_blocks.order import check_in_parts
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.structure import MessagePairs, message_pairs
from coppice.program.order import Deadlock
from coppice.schedule.verification.report import Findings

MOST_TOGETHER = 71
"""Most slots that a message carries."""

_BUFFER_STEPS = 8
_MOST_PASSES = 65_536
_LARGEST = 2**37
_MISLED = (Collective.BROADCAST, Collective.REDUCE)


def _steps(protocol: str) -> int:
    """Steps of a buffer that a message takes."""
    return 1 if protocol in ("LL", "LL128") else 4


def fifo_depth(protocol: str) -> int:
    """Guaranteed depth of a connection in messages: 8 with LL and LL128, otherwise 2."""
    return _BUFFER_STEPS // _steps(protocol)


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """Default buffer bytes of a connection by protocol, flags included."""

    simple: int  # With Simple
    ll: int  # With LL, half of it flags
    ll128: int  # With LL128
    line: int  # Bytes of a line of LL128, 8 of them a flag
    # Protocols whose sends count as done before all their threads have read
    # (:mod:`coppice.program.dialects.thread_blocks.unroll`)
    early: tuple[str, ...] = ()

    def pass_bytes(self, protocol: str) -> int:
        """Bytes of a slot in one pass, which fit into one message.

        Args:
            protocol: ``Simple``, ``LL`` or ``LL128``.

        Examples:
            >>> [NVIDIA.pass_bytes(protocol) for protocol in ("Simple", "LL", "LL128")]
            [2097152, 32768, 576000]
        """
        match protocol:
            case "LL":
                return self.ll // _BUFFER_STEPS // 2
            case "LL128":
                return self.ll128 // _BUFFER_STEPS // self.line * (self.line - 8)
            case _:
                return self.simple // _BUFFER_STEPS * _steps(protocol)

    def message_bytes(self, protocol: str, collective: Collective) -> int:
        """Bytes per message after cutting: those of a pass, or a quarter under proxy step deadlock."""
        whole = self.pass_bytes(protocol)
        return whole // _steps(protocol) if proxy_step_deadlock(protocol, collective) else whole

    def together(self, protocol: str, collective: Collective, slot_bytes: int) -> int:
        """Number of slots per message.

        Args:
            slot_bytes: Bytes of a slot, 1 or more.

        Examples:
            >>> [NVIDIA.together("Simple", Collective.ALL_REDUCE, size) for size in (1, 2**18, 2**30)]
            [71, 8, 1]
        """
        return min(max(self.message_bytes(protocol, collective) // slot_bytes, 1), MOST_TOGETHER)


NVIDIA = Buffers(simple=2**22, ll=8 * 512 * 8 * 16, ll128=8 * 640 * 120 * 8, line=128)
"""NCCL of microsoft/msccl and of Azure's executor, on x86."""

AMD = Buffers(simple=2**22, ll=8 * 256 * 8 * 16, ll128=8 * 256 * 28 * 8, line=64, early=("LL",))
"""RCCL."""

SMALLEST = AMD
"""The smallest of every protocol: what comes to an end with these does so with those of the others, and what has no
race with them has none with the others."""

PATIENT = replace(SMALLEST, early=())
"""The same, where sends are done when all their threads have read: what a program is made for that is settled for its
target (:func:`coppice.program.dialects.thread_blocks.races.settled`)."""


def proxy_step_deadlock(protocol: str, collective: Collective) -> bool:
    """Simple deadlocks across nodes: the proxy gets nsteps/4.

    Args:
        protocol: ``Simple``, ``LL`` or ``LL128``.

    Examples:
        >>> proxy_step_deadlock("Simple", Collective.REDUCE), proxy_step_deadlock("LL", Collective.REDUCE)
        (True, False)
    """
    return collective in _MISLED and protocol == "Simple"


def fewest_together(program: Program, messages: MessagePairs, *, depth: int) -> tuple[int | None, str]:
    """Fewest slots per message with which a program terminates; 1: it does at every size.

    Args:
        program: A program of sound structure that comes to an end where no step is cut.

    Returns:
        The number, None where it deadlocks even with :data:`MOST_TOGETHER`; and the circle of waiting with fewer.
    """
    circles: dict[int, str] = {}

    def ends(together: int) -> bool:
        try:
            check_in_parts(program, messages, depth=depth, together=together)
        except Deadlock as circle:
            circles[together] = str(circle)
        return together not in circles

    most = int(program.count.max(initial=1))
    if most == 1 or ends(1):
        return 1, ""
    bad, good = 1, min(most, MOST_TOGETHER)
    if most > MOST_TOGETHER and not ends(good):
        return None, circles[good]
    while good - bad > 1:
        middle = (good + bad) // 2
        bad, good = (bad, middle) if ends(middle) else (middle, good)
    return good, circles[bad]


def largest_safe(program: Program, together: int | None, buffers: Buffers = SMALLEST) -> int | None:
    """Largest M in bytes at which the program does not deadlock through cutting; None: no limit.

    Args:
        together: What :func:`fewest_together` found.

    Returns:
        A multiple of C, 0 where no size is safe.
    """
    if together is None:
        return 0
    if together == 1:
        return None
    return buffers.message_bytes(program.protocol, program.collective) // together * program.num_chunks


def most_in_passes(program: Program, buffers: Buffers = SMALLEST) -> int | None:
    """Largest M in bytes whose passes fit the flags between thread blocks; None: no limit."""
    most = buffers.pass_bytes(program.protocol) * _MOST_PASSES * program.num_chunks
    return most if len(program.dep_block) and most < _LARGEST else None


def within_safe_sizes(program: Program) -> Program:
    """Restrict a program to the sizes at which it terminates however its steps are cut.

    Args:
        program: A program that comes to an end where no step is cut.
    """
    together: int | None = 1
    if int(program.count.max(initial=1)) > 1:
        pairs = message_pairs(program, Findings())
        together, _ = fewest_together(program, pairs, depth=fifo_depth(program.protocol))
    limits = [program.max_bytes, largest_safe(program, together), most_in_passes(program)]
    most = min((limit for limit in limits if limit is not None), default=None)
    if most is not None and most < program.min_bytes:
        raise CheckError(
            f"the program deadlocks with messages of more than {most:,} bytes, where runtimes cut its steps into "
            f"several messages, and is meant for {program.min_bytes:,} and more: plan fewer trees (`trees`), or export "
            "for smaller messages (`size`)."
        )
    return replace(program, max_bytes=most)
