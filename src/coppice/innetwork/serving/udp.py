"""A software switch over UDP, threads of this process, and the client by which workers all-reduce through it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.errors import CoppiceError, InputError
from coppice.innetwork.serving.settings import ClientSettings, SwitchSettings, with_former_names
from coppice.innetwork.systems.registry import PROTOCOLS
from coppice.native import _switch
from coppice.options.calls import taking

SWITCH_VARIABLE = "COPPICE_SWITCH"
"""Where the switch is, as HOST:PORT."""

SECRET_VARIABLE = "COPPICE_SWITCH_SECRET"
"""File with the secret of the switch."""


def parse_address(text: str, *, option: str = "the switch") -> tuple[str, int]:
    """Parse HOST:PORT.

    Args:
        text: Such as ``127.0.0.1:9000``.
        option: What it was given to, for messages.

    Examples:
        >>> parse_address("127.0.0.1:9000")
        ('127.0.0.1', 9000)
        >>> parse_address("9000")
        Traceback (most recent call last):
        coppice.errors.InputError: expected HOST:PORT for the switch, such as 127.0.0.1:9000, found '9000'.
    """
    host, colon, port = text.strip().rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise InputError(f"expected HOST:PORT for {option}, such as 127.0.0.1:9000, found {text!r}.")
    return host, int(port)


def read_secret(path: str | os.PathLike[str] | None) -> bytes:
    """Read a secret from a file, without white space at its ends; nothing where no file is named.

    Without a secret, packets are sealed with a key that everybody knows: that keeps out what comes by accident, not
    those who mean harm.
    """
    if path is None:
        return b""
    secret = Path(path).read_bytes().strip()
    if not 0 < len(secret) <= 1 << 16:
        raise InputError(
            f"expected a secret of 1 to 65536 bytes in {os.fspath(path)}, found {len(secret)}: write 16 random bytes."
        )
    return secret


ELEMENTS = ("float32", "int32")
_SLOTS = 64
_FEWER_SLOTS = re.compile(r"a job may have (\d+) slots, found")
"""How a switch refuses a job that asks for more slots than it may have."""


class SwitchError(CoppiceError):
    """A failure of the switch or of another worker; the contents of the receive buffer are undefined."""


class SwitchClient:
    """One worker of a job at a switch.

    All workers of a job make the same calls in the same order. Sums of float32 are of 31-bit integers at a common scale
    of each packet, as the protocol says; float16 is summed as float32.

    Its arguments are the fields of :class:`~coppice.innetwork.serving.settings.ClientSettings`.

    Raises:
        InputError: If an option is out of range.

    Examples:
        >>> from coppice.innetwork.serving.udp import SwitchServer
        >>> with (
        ...     SwitchServer() as switch,
        ...     SwitchClient(switch.address, worker=0, workers=1, element="int32") as worker,
        ... ):
        ...     worker.all_reduce(np.arange(3, dtype=np.int32)).tolist()
        [0, 1, 2]
    """

    @taking(ClientSettings)
    def __init__(self, settings: ClientSettings) -> None:
        host, port = parse_address(settings.address)
        protocol, element, threads = settings.protocol, settings.element, settings.threads
        if element not in ELEMENTS:
            raise InputError(f"expected elements of {' or '.join(ELEMENTS)} at the switch, found {element}.")
        values = settings.values
        if values is None:
            values = PROTOCOLS[protocol].values if protocol in PROTOCOLS else 256
        wanted = _SLOTS if settings.slots is None else settings.slots
        outstanding = wanted if settings.window is None else settings.window
        for name, value in (("slots", wanted), ("window", outstanding)):
            if value < threads:
                raise InputError(f"expected `{name}` of each thread above 0, found {value // threads}.")
        at_switch = (settings.worker, settings.workers) if settings.member is None else settings.member
        self.worker, self.workers, self.element = settings.worker, settings.workers, element
        self._join_timeout_s = float(settings.join_timeout_s)
        self._may_have_fewer = settings.slots is None

        def core(slots: int, window: int) -> _switch.SwitchClient:
            """Make the native client, with so many slots and outstanding packets on each thread."""
            described = _switch.AggregationJob(
                id=settings.job,
                workers=settings.workers,
                slots=slots,
                values=values,
                window=window,
                element=getattr(_switch.Element, element),
                timeout_ns=int(settings.timeout_ms * 1e6),
                give_up_timeout_ns=10**16,  # the client knows better than the machine when to give up
                settings={name: float(value) for name, value in (settings.settings or {}).items()},
            )
            return _switch.switch_client(
                settings, host=host, port=port, job=described, member=at_switch[0], members=at_switch[1]
            )

        self._window = outstanding // threads
        self._core_client = core
        try:
            self._client = core(wanted // threads, self._window)
        except (RuntimeError, ValueError, OverflowError) as error:
            raise InputError(f"{error}.") from None

    def __enter__(self) -> SwitchClient:
        self.join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("" if error is None else f"it failed with {type(error).__name__}")

    def join(self) -> None:
        """Join the job, and wait until all its workers have."""
        try:
            try:
                self._client.join(timeout_s=self._join_timeout_s)
            except RuntimeError as error:
                fewer = _FEWER_SLOTS.search(str(error)) if self._may_have_fewer else None
                if fewer is None:
                    raise
                self._client.close("")
                slots = int(fewer[1])
                self._client = self._core_client(slots, min(self._window, slots))
                self._client.join(timeout_s=self._join_timeout_s)
        except (RuntimeError, ValueError) as error:
            raise SwitchError(f"{error}.") from None

    def all_reduce(
        self,
        # What this worker contributes, contiguous; takes the result if there is no output
        buffer: NDArray[Any],
        output: NDArray[Any] | None = None,  # Takes the result; of the same type and size
        *,
        op: str = "sum",  # `sum` or `avg`
        timeout_s: float = 300.0,  # Longest wait for the other workers, in seconds
    ) -> NDArray[Any]:
        """All-reduce a buffer over all workers of the job.

        Returns:
            The array with the result.
        """
        result = buffer if output is None else output
        if op not in ("sum", "avg"):
            raise InputError(
                f"expected sum or avg in the network, found {op}: use an algorithm of the hosts."
            )
        served = ("float32", "float16") if self.element == "float32" else ("int32",)
        for array in (buffer, result):
            if array.dtype.name not in served or not array.flags.c_contiguous or array.size != buffer.size:
                raise InputError(
                    f"expected contiguous arrays of one size and of {' or '.join(served)}, found {array.dtype} of "
                    f"{array.size} elements."
                )
        given = np.ascontiguousarray(buffer, dtype=self.element).reshape(-1)
        wanted = result.reshape(-1) if result.dtype == given.dtype else np.empty_like(given)
        self.all_reduce_at(given.ctypes.data, wanted.ctypes.data, given.size, timeout_s=timeout_s)
        if op == "avg" and self.element == "int32":
            wanted[:] = np.trunc(wanted / self.workers)
        elif op == "avg":
            np.divide(wanted, np.float32(self.workers), out=wanted)
        if wanted.dtype != result.dtype:
            result.reshape(-1)[:] = wanted
        return result

    def all_reduce_at(self, given: int, wanted: int, count: int, *, timeout_s: float) -> None:
        """All-reduce ``count`` elements from the address ``given`` to ``wanted``, which may be the same."""
        try:
            self._client.all_reduce(input=given, output=wanted, count=count, timeout_s=timeout_s)
        except RuntimeError as error:
            raise SwitchError(f"{error}.") from None
        except ValueError as error:
            raise InputError(f"{error}.") from None

    def close(self, why: str = "") -> None:
        """Leave the job, which ends once all workers have left.

        Args:
            why: In words where that is no good end: the job ends at once, and the others are told.
        """
        self._client.close(why)

    def counters(self) -> dict[str, int]:
        """Count this worker's packets, by what happened to them."""
        return with_former_names(self._client.counters())


class SwitchServer:
    """A software switch that runs until it is closed.

    Its arguments are the fields of :class:`~coppice.innetwork.serving.settings.SwitchSettings`.

    Raises:
        InputError: If an option is out of range, or the port cannot be used.

    Examples:
        >>> import numpy as np
        >>> from coppice.innetwork.serving.udp import SwitchClient
        >>> with SwitchServer(workers=1) as switch:
        ...     with SwitchClient(switch.address, worker=0, workers=1) as worker:
        ...         worker.all_reduce(np.ones(3, dtype=np.float32)).tolist()
        [1.0, 1.0, 1.0]
    """

    @taking(SwitchSettings)
    def __init__(self, settings: SwitchSettings) -> None:
        if settings.index >= settings.siblings:
            raise InputError(
                f"expected `index` of 0 to {settings.siblings - 1} for {settings.siblings} switches below one, found "
                f"{settings.index}."
            )
        parent = settings.parent
        above = None if parent is None else parse_address(parent, option="the switch above")
        try:
            self._server = _switch.switch_server(settings, parent=above)
        except (RuntimeError, ValueError) as error:
            raise InputError(f"{error}.") from None
        self.host, self.port = settings.host, self._server.port()

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
