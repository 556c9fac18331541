"""A software switch: threads of this process that aggregate what workers send them over UDP."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from coppice.errors import InputError
from coppice.innetwork.counters import with_former_names
from coppice.innetwork.serving.client import parse_address
from coppice.innetwork.serving.settings import SwitchSettings
from coppice.native import _switch
from coppice.options.calls import taking


class SwitchServer:
    """A software switch that runs until it is closed.

    Its arguments are the fields of :class:`~coppice.innetwork.serving.settings.SwitchSettings`.

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
