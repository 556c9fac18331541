"""State-space layers: weights, operations and bytes of Mamba and Mamba-2, by the formulas of their papers.

A layer projects its input to inner values, gates and what steers the state, passes the former through a convolution
over four tokens, scans a state of N values for each inner value along the sequence, and projects back.

* Mamba (Gu & Dao, arXiv 2312.00752, section 3 and appendix D): input and gate; state and steps come from the inner
  values, steps through a matrix of low rank. The scan takes 9 N operations an inner value and reads and writes inputs
  and results once; it runs on the 32-bit units of the processors, not on tensor cores.
* Mamba-2 (Dao & Gu, arXiv 2405.21060, sections 6 and 7): one projection for all, heads that share a step, groups of
  heads that share inputs and outputs of the state. Within chunks of Q tokens it is attention with a decay, between them
  a state is handed on: for each token 2 Q (G N + H P) operations within, and 4 N H P to and from states.

Backward passes of the scan take two and a half times as long as forward ones, as those of attention do: states are made
again, and every product has gradients of two operands.
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNK = 256
"""Tokens of a chunk, as published models have it."""
BACKWARD_SCAN = 2.5
VECTOR_SHARE = 1 / 32
"""Rate of operations of 32 bits outside of tensor cores over the peak: half of the sixteenth that data sheets have, as
exponentials are among them."""
_CONVOLUTION = 4  # tokens


@dataclass(frozen=True, kw_only=True)
class StateSpace:
    """A state-space layer.

    Examples:
        A layer of Nemotron-H 8B (arXiv 2504.03624), and one of Jamba (arXiv 2403.19887):

        >>> second = StateSpace(hidden=4096, heads=128, head_width=64, groups=8, state=128, rank=0)
        >>> first = StateSpace(hidden=4096, heads=8192, head_width=1, groups=1, state=16, rank=256)
        >>> [round((each.parameters + each.small_parameters) / 1e6, 1) for each in (second, first)]
        [109.6, 105.3]
        >>> second.scan_flops / 1e6, first.scan_flops / 1e6
        (8.912896, 1.179648)
    """

    hidden: int  # Width of the model
    heads: int  # Heads, each with a step of its own; of Mamba one for each inner value
    head_width: int  # Inner values of a head
    groups: int  # Groups of heads that share inputs and outputs of the state
    state: int  # Values of the state of an inner value
    rank: int  # Rank of the matrix that steps are made with; 0: Mamba-2, whose input has them

    @property
    def inner(self) -> int:
        """Inner values of a token."""
        return self.heads * self.head_width

    @property
    def steering(self) -> int:
        """Values that steer the state: what goes in and what comes out, of each group."""
        return 2 * self.groups * self.state

    @property
    def convolved(self) -> int:
        """Values of a token that are convolved."""
        return self.inner if self.rank else self.inner + self.steering

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Columns of the result and inner dimension of each product, by its name."""
        if self.rank:
            return {
                "state_in": (2 * self.inner, self.hidden),
                "state_select": (self.rank + self.steering, self.inner),
                "state_steps": (self.inner, self.rank),
                "state_out": (self.hidden, self.inner),
            }
        return {
            "state_in": (2 * self.inner + self.steering + self.heads, self.hidden),
            "state_out": (self.hidden, self.inner),
        }

    @property
    def parameters(self) -> int:
        """Weights of matrices and of the convolution."""
        return sum(n * k for n, k in self.products.values()) + self.convolution

    @property
    def convolution(self) -> int:
        """Weights of the convolution."""
        return _CONVOLUTION * self.convolved

    @property
    def small_parameters(self) -> int:
        """Weights outside of matrices: biases, decays, what goes past the state, and of Mamba-2 a norm."""
        if self.rank:
            return self.convolved + self.inner * self.state + 2 * self.inner
        return self.convolved + 3 * self.heads + self.inner

    @property
    def scan_flops(self) -> int:
        """Operations of the scan for a token."""
        if self.rank:
            return 9 * self.state * self.inner
        within = 2 * CHUNK * (self.groups * self.state + self.inner)
        return within + 4 * self.state * self.inner

    @property
    def scan_bytes(self) -> float:
        """Bytes of the scan for a token: inner values, steps and gates in, results out.

        Of Mamba-2 states of chunks as well, of 32 bits, written and read twice.
        """
        if self.rank:
            return 2 * (4 * self.inner + self.steering)
        return 2 * (6 * self.inner + 2 * self.steering) + 16 * self.state * self.inner / CHUNK

    @property
    def kept(self) -> int:
        """Values of a token that the backward pass needs: results of products, and of the scan."""
        return sum(n for name, (n, _) in self.products.items() if name != "state_out") + self.inner
