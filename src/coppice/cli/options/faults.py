"""Options of faults: what is slow, and what is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from coppice.errors import InputError
from coppice.options import option

if TYPE_CHECKING:
    from coppice.topology.model import Topology


class Faults(Struct, frozen=True, kw_only=True):
    """Faults of a network, as the command line names them."""

    links: Annotated[
        list[str] | None,
        option("Set a link to a rate in GB/s, or to a share: 50%.", "--link", metavar="A,B=RATE"),
    ] = None
    nodes: Annotated[
        list[str] | None,
        option("Scale all links of a GPU, NIC or switch: 50%.", "--node", "--slow", metavar="NODE=SHARE"),
    ] = None
    removed: Annotated[
        list[str] | None, option("Remove a node or a link.", "--remove", metavar="NODE or A,B")
    ] = None
    one_way: Annotated[bool, option("Change links only from A to B.")] = False

    def of(self, topology: Topology) -> Topology:
        """The network with its faults.

        Raises:
            InputError: If nothing is faulty, or a node, link, rate or share is not there or cannot be.
        """
        from coppice.topology.load import degrade

        if not (self.links or self.nodes or self.removed):
            raise InputError("expected something to degrade, found no --link, --node or --remove: name one.")
        rates = [_assignment(text, "--link A,B=RATE") for text in self.links or ()]
        return degrade(
            topology,
            links={
                _link_ends(ends, text): rate
                for (ends, rate), text in zip(rates, self.links or (), strict=True)
            },
            nodes=dict(_assignment(text, "--node NODE=SHARE") for text in self.nodes or ()),
            remove=[_link_ends(text, text) if "," in text else text for text in self.removed or ()],
            one_way=self.one_way,
        )


def _assignment(text: str, shape: str) -> tuple[str, str]:
    key, equals, value = text.rpartition("=")
    if not equals or not key or not value:
        raise InputError(f"expected {shape}, found {text!r}.")
    return key.strip(), value.strip()


def _link_ends(text: str, where: str) -> tuple[str, str]:
    src, comma, dst = text.partition(",")
    if not comma or not src or not dst or "," in dst:
        raise InputError(f"expected the two ends of a link as A,B, found {where!r}.")
    return src.strip(), dst.strip()
