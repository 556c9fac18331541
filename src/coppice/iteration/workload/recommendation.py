"""The deep learning recommendation model (DLRM; Naumov et al., arXiv 1906.00091): two MLPs, and tables of embeddings.

MLPs are copied to every GPU, tables shared out: a GPU looks up its tables for the batch of all and gets the rows of its
own samples from all others, an all-to-all forward and one backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from coppice.iteration.workload.model import LayeredModel, MatrixProduct, ModelLayer

_FLOAT = 4  # bytes of a value
_CRITEO = (
    *(39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10),
    *(2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36),
)
"""Rows of the tables of MLPerf's data set (Criteo, a terabyte), of which 40 million at most are kept."""


def dlrm(
    *,
    dense: int = 13,  # Numbers that a sample has beside its categories
    # Widths of the MLP over them; the last is the width of embeddings
    bottom: Sequence[int] = (512, 256, 128),
    # Widths of the MLP over the products of embeddings with each other
    top: Sequence[int] = (1024, 1024, 512, 256, 1),
    rows: Sequence[int] = _CRITEO,
    lookups: int = 1,  # Rows that a sample looks up in each table
) -> LayeredModel:
    """A recommendation model; by default that of MLPerf.

    Examples:
        >>> found = dlrm()
        >>> round(found.table_parameters / 1e9, 2), f"{found.parameters - found.table_parameters:,.0f}"
        (24.03, '2,368,897')
    """
    width, tables = bottom[-1], len(rows)
    vectors = tables + 1
    pairs = vectors * (vectors - 1) // 2
    looked = _FLOAT * tables * width
    row = [
        ModelLayer(
            name="tables",
            kind="tables",
            passed_bytes=looked * (lookups + 1),
            kept_bytes=looked,
            parameters=sum(rows) * width,
            expert_parameters=sum(rows) * width,
            exchanged_bytes=looked,
        ),
        *_mlp("bottom", (dense, *bottom)),
        ModelLayer(
            name="interaction",
            kind="interaction",
            products=(MatrixProduct(rows=vectors, n=vectors, k=width),),
            passed_bytes=_FLOAT * (vectors * width + 2 * pairs),
            kept_bytes=_FLOAT * (vectors * width + pairs),
        ),
        *_mlp("top", (width + pairs, *top)),
    ]
    return LayeredModel(
        name="dlrm", row=tuple(row), sample="sample", state_bytes=0.0, table_state_bytes=_FLOAT / width
    )


def _mlp(name: str, widths: Sequence[int]) -> list[ModelLayer]:
    """Layers of an MLP."""
    return [
        ModelLayer(
            name=f"{name}.{number}",
            kind="mlp",
            products=(MatrixProduct(rows=1, n=outer, k=inner),),
            passed_bytes=2 * _FLOAT * outer,
            kept_bytes=_FLOAT * outer,
            parameters=inner * outer + outer,
        )
        for number, (inner, outer) in enumerate(itertools.pairwise(widths))
    ]
