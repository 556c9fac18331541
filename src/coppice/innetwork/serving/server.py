"""A software switch: threads of this process that aggregate what workers send them over UDP."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.innetwork.counters import with_former_names
from coppice.innetwork.serving.client import parse_address
from coppice.native import _switch


@dataclass(frozen=True, kw_only=True)
class PacketFaults:
    """Faults to inject into the packets that a switch receives and sends, by seed."""

    drop: float = 0.0  # Share of packets that are lost
    duplicate: float = 0.0  # Share that comes twice
    reorder: float = 0.0  # Share that 1 to 8 later packets overtake
    seed: int = 1  # Of the choice
    after: int = 0  # Packets of each direction that pass unharmed first

    def __post_init__(self) -> None:
        """Raise unless the shares are from 0 to 1."""
        for name in ("drop", "duplicate", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"expected `{name}` of 0 to 1, found {getattr(self, name)}.")
        if self.seed < 0 or self.after < 0:
            raise InputError(f"expected `seed` and `after` of 0 or more, found {self.seed} and {self.after}.")


class SwitchServer:
    """A software switch that runs until it is closed.

    Args:
        protocol: What it speaks, see :mod:`coppice.innetwork.systems`; several with commas between them.
        workers: Of a job; jobs of another size are refused. 0 for any.
        slots: Sums that can be under way, over all jobs and threads, of each protocol.
        host: IPv4 address to listen at, or a name that has one.
        port: UDP port of the first thread, the next ones follow; 0 for any free one.
        threads: Threads with a port each.
        secret: What workers must know; nothing for a public key, which guards against accidents alone.
        faults: What it does to packets on purpose.
        parent: Switch above this one, as HOST:PORT: completed sums go there, and come back from there.
        index: Which of the switches below the parent this one is.
        siblings: How many there are.
        silence_s: A worker that is not heard of for so long ends its job, in seconds.
        most_jobs: Jobs at a time.
        most_slots: Slots of one job; 0 for all.
        most_per_second: Packets of one worker in a second, of which more are dropped; 0 for any number.

    Raises:
        InputError: If an option is out of range, or the port cannot be used.

    Examples:
        >>> import numpy as np
        >>> from coppice.innetwork.serving.client import SwitchClient
        >>> with SwitchServer(workers=1) as switch:
        ...     with SwitchClient(switch.address, worker=0, workers=1) as worker:
        ...         worker.all_reduce(np.ones(3, dtype=np.float32)).tolist()
        [1.0, 1.0, 1.0]
    """

    @checked
    def __init__(
        self,
        protocol: str = "switchml",
        *,
        workers: int = 0,
        slots: int = 256,
        host: str = "127.0.0.1",
        port: int = 0,
        threads: int = 1,
        secret: bytes = b"",
        faults: PacketFaults | None = None,
        parent: str | None = None,
        index: int = 0,
        siblings: int = 1,
        silence_s: float = 10.0,
        most_jobs: int = 64,
        most_slots: int = 0,
        most_per_second: float = 0.0,
    ) -> None:
        if workers < 0 or slots < 1 or threads < 1 or most_jobs < 1 or most_slots < 0 or silence_s <= 0:
            raise InputError(
                "expected 1 slot, thread, and job or more, no negative numbers and `silence_s` above 0, found "
                f"{slots}, {threads} and {most_jobs}, {workers} workers, {most_slots} slots of a job and {silence_s} s."
            )
        if not 0 <= index < siblings:
            raise InputError(
                f"expected `index` of 0 to {siblings - 1} for {siblings} switches below one, found {index}."
            )
        troubles = faults or PacketFaults()
        above = (
            None if parent is None else (*parse_address(parent, option="the switch above"), index, siblings)
        )
        try:
            self._server = _switch.switch_server(
                protocol=protocol,
                secret=secret,
                workers=workers,
                slots=slots,
                host=host,
                port=port,
                threads=threads,
                faults=(troubles.drop, troubles.duplicate, troubles.reorder, troubles.seed, troubles.after),
                parent=above,
                silence_s=float(silence_s),
                most_jobs=most_jobs,
                most_slots=most_slots,
                most_per_second=float(most_per_second),
            )
        except (RuntimeError, ValueError) as error:
            raise InputError(f"{error}.") from None
        self.host, self.port = host, self._server.port()

    @property
    def address(self) -> str:
        """HOST:PORT at which the switch listens."""
        return f"{self.host}:{self.port}"

    def __enter__(self) -> SwitchServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and end the threads. Twice is allowed."""
        self._server.stop()

    def report(self) -> dict[str, Any]:
        """Report the counters so far: some 50 ms old while the switch serves, complete once it is closed.

        Returns:
            ``jobs`` and ``slots_in_use`` now; packets ``sent``, ``lost`` (that the system did not take), ``dropped``,
            ``duplicated`` and ``reordered`` (on purpose); and by reason what the ``gate`` did not let pass and what
            the ``protocol`` did with the rest.
        """
        found: dict[str, Any] = self._server.report()
        return found | {part: with_former_names(found[part]) for part in ("gate", "protocol")}

    def events(self) -> list[str]:
        """Take the lines about jobs that began and ended since the last call."""
        found: list[str] = self._server.events()
        return found
