"""Machine texts read under the name ``box``, and what is said of those that are refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coppice.errors import InputError
from coppice.topology.model import Topology
from coppice.topology.readers import Reading, read


def rates(topology: Topology) -> dict[tuple[str, str], Fraction]:
    return {(link.src, link.dst): link.gb_per_s for link in topology.links()}


def parsed(data: bytes, **options: str) -> Reading:
    return read(data, name="box", options=options)


def refused(data: bytes, **options: str) -> str:
    with pytest.raises(InputError) as caught:
        parsed(data, **options)
    return str(caught.value)
