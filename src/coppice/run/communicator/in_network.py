"""All-reduce in the network, for communicators whose algorithm is an in-network protocol.

The switch is a process (``coppice switch serve``) whose place ``COPPICE_SWITCH`` names. Where it cannot be reached, or
a sum does not complete, all ranks learn of it before any of them uses a result, and the hosts do it themselves from
then on; or all ranks raise.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.decoding import decodable
from coppice.errors import CoppiceError, InputError
from coppice.innetwork.serving.settings import ClientSettings
from coppice.innetwork.serving.udp import (
    SECRET_VARIABLE,
    SWITCH_VARIABLE,
    SwitchClient,
    SwitchError,
    parse_address,
    read_secret,
)
from coppice.native import _switch
from coppice.options import options_of
from coppice.program.dialects.rank.program import RankProgram
from coppice.run.engines.datatype import DataType, ReduceOp, divide, elements_of, from_bfloat16, to_bfloat16
from coppice.run.engines.engine import Engine
from coppice.run.errors import RunError

SETTINGS_VARIABLE = "COPPICE_SWITCH_SETTINGS"
"""Options of :class:`~coppice.innetwork.serving.udp.SwitchClient`, as in ``values=64,slots=128``."""

_OPTIONS = ("values", "slots", "window", "threads", "timeout_ms", "silence_s", "join_timeout_s")
"""Those that are no matter of the protocol."""

_AT_THE_SWITCH = {
    DataType.FLOAT32: DataType.FLOAT32,
    DataType.FLOAT16: DataType.FLOAT32,
    DataType.BFLOAT16: DataType.FLOAT32,
    DataType.INT32: DataType.INT32,
}
_LOG = logging.getLogger("coppice")


def is_protocol(algorithm: str) -> bool:
    """Whether an algorithm is an in-network protocol.

    Examples:
        >>> is_protocol("switchml"), is_protocol("ring")
        (True, False)
    """
    return algorithm in _switch.aggregation_protocols()


def switch_defect(algorithm: str, environment: Mapping[str, str] | None = None) -> str:
    """Why the switch settings in the environment are invalid, or nothing.

    Examples:
        >>> switch_defect("switchml", {"COPPICE_SWITCH": "127.0.0.1:9000"})
        ''
        >>> switch_defect("switchml", {})[:53]
        'expected COPPICE_SWITCH=HOST:PORT of a running switch'
    """
    try:
        _described(algorithm, os.environ if environment is None else environment)
    except CoppiceError as error:
        return str(error)
    except OSError as error:
        return f"expected a file with a secret in {SECRET_VARIABLE}, found none: {error}."
    return ""


def _described(algorithm: str, environment: Mapping[str, str]) -> tuple[str, bytes, dict[str, Any]]:
    """Address, secret and options."""
    address = environment.get(SWITCH_VARIABLE, "")
    if not address:
        raise InputError(
            f"expected {SWITCH_VARIABLE}=HOST:PORT of a running switch for the algorithm {algorithm}, found none: "
            f"start one with `coppice switch serve --system {algorithm}`."
        )
    parse_address(address, option=SWITCH_VARIABLE)
    options: dict[str, Any] = {}
    for entry in filter(None, environment.get(SETTINGS_VARIABLE, "").split(",")):
        name, _, value = (part.strip() for part in entry.partition("="))
        try:
            if name in _OPTIONS:
                options[name] = options_of(ClientSettings)[name].value(value)
            else:
                options.setdefault("settings", {})[name] = float(value)
        except (InputError, ValueError):
            raise InputError(f"expected NAME=NUMBER,... in {SETTINGS_VARIABLE}, found {entry!r}.") from None
    return address, read_secret(environment.get(SECRET_VARIABLE)), options


class _PeerReport(msgspec.Struct, frozen=True):
    """What a rank reports of its part in an agreement."""

    failure: str = ""
    job: int = 0
    address: str = ""


class InNetwork:
    """All-reduce of one rank through a switch.

    Args:
        engine: The group, to agree on what happens.
        protocol: Of the switch.
        timeout_s: Longest wait for another rank, in seconds.
        fall_back: Whether the hosts take over where the switch fails; otherwise all ranks raise.
    """

    def __init__(self, engine: Engine, protocol: str, *, timeout_s: float, fall_back: bool) -> None:
        self._engine, self.protocol = engine, protocol
        self._timeout_s, self._fall_back = timeout_s, fall_back
        self._clients: dict[DataType, SwitchClient] = {}
        self.failure = ""

    def check(self, collective: Collective, dtype: DataType, op: ReduceOp) -> None:
        """Refuse types that switches cannot reduce; other collectives stay on the hosts."""
        if collective is not Collective.ALL_REDUCE:
            return
        if dtype not in _AT_THE_SWITCH:
            raise InputError(
                f"expected {', '.join(_AT_THE_SWITCH)} for the algorithm {self.protocol}, found {dtype}: switches add "
                "numbers of 32 bits, so convert them or take an algorithm of the hosts."
            )
        if op not in (ReduceOp.SUM, ReduceOp.AVG):
            raise InputError(
                f"expected sum or avg for the algorithm {self.protocol}, found {op}: take an algorithm of the hosts."
            )

    def all_reduce(
        self, program: RankProgram, given: Any, wanted: Any, *, dtype: DataType, op: ReduceOp
    ) -> bool:
        """All-reduce in the network; collective over the ranks.

        Returns:
            The result is in ``wanted`` on every rank. Otherwise the memory is as it was, and the hosts shall do it.
        """
        output = elements_of(wanted, dtype, program.count, name="the output", writable=True)
        source = output if program.in_place else elements_of(given, dtype, program.count, name="the input")
        if self.failure or not program.count:
            return not program.count
        client = self._client(_AT_THE_SWITCH[dtype])
        if client is None:
            return False
        values = _widened(source, dtype)
        # Until all ranks have it, the hosts may need the input again.
        target = output
        if values is not source:
            target = values
        elif program.in_place and self._fall_back:
            target = np.empty_like(output)
        failure = ""
        try:
            client.all_reduce_at(
                values.ctypes.data, target.ctypes.data, program.count, timeout_s=self._timeout_s
            )
        except SwitchError as error:
            failure = str(error)
        if self._fall_back:
            failure = self._agreed(failure)
        if failure:
            return self._give_up(failure)
        if op is ReduceOp.AVG:
            divide(_AT_THE_SWITCH[dtype], target, self._engine.ranks)
        if target is not output:
            output[:] = to_bfloat16(target) if dtype is DataType.BFLOAT16 else target
        return True

    def close(self) -> None:
        """Close the jobs."""
        while self._clients:
            self._clients.popitem()[1].close()

    def _client(self, element: DataType) -> SwitchClient | None:
        """This rank's end of the job for a type, joined when it is first needed: by all ranks at once."""
        if element in self._clients:
            return self._clients[element]
        address, secret, options = _described(self.protocol, os.environ)
        told = self._exchange(_PeerReport(job=1 + secrets.randbelow(65535), address=address))
        neighbours = [rank for rank, each in enumerate(told) if each.address == address]
        failure = ""
        client = None
        try:
            client = SwitchClient(
                address,
                worker=self._engine.rank,
                workers=self._engine.ranks,
                member=(neighbours.index(self._engine.rank), len(neighbours)),
                job=told[0].job,
                protocol=self.protocol,
                element=element.value,
                secret=secret,
                **options,
            )
            client.join()
        except CoppiceError as error:
            failure = str(error)
        failure = self._agreed(failure)
        if failure:
            if client is not None:
                client.close(failure)
            self._give_up(failure)
            return None
        assert client is not None
        self._clients[element] = client
        return client

    def _exchange(self, mine: _PeerReport) -> list[_PeerReport]:
        return [
            msgspec.json.decode(each, type=decodable(_PeerReport))
            for each in self._engine.exchange(msgspec.json.encode(mine))
        ]

    def _agreed(self, failure: str) -> str:
        """The first failure of any rank, the same on all ranks."""
        told = self._exchange(_PeerReport(failure=failure))
        return next((f"on rank {rank}, {each.failure}" for rank, each in enumerate(told) if each.failure), "")

    def _give_up(self, failure: str) -> bool:
        """Use the switch no more."""
        self.failure = failure
        while self._clients:
            self._clients.popitem()[1].close(failure)
        if not self._fall_back:
            raise RunError(f"the all_reduce by {self.protocol} did not complete: {failure}")
        if self._engine.rank == 0:
            _LOG.warning("%s is no longer used, the hosts reduce by themselves: %s", self.protocol, failure)
        return False


def _widened(source: NDArray[Any], dtype: DataType) -> NDArray[Any]:
    """The numbers as the switch adds them: the same memory where they are so already."""
    if dtype is DataType.BFLOAT16:
        return from_bfloat16(source)
    return source.astype(np.float32) if dtype is DataType.FLOAT16 else source
