"""Mixtures of experts over ranks: exchanges of tokens before sums, experts packed, replicated and exchanged by plan."""
