"""The subset of P4_16 that is read: words, grammar, types, and the functions that a program becomes."""
