"""Programs of computation and collectives, and rewrites that preserve their semantics (CoCoNet).

Source: Jangda et al., "Breaking the Computation and Communication Abstraction Barrier in Distributed Machine Learning
Workloads" (CoCoNet, ASPLOS 2022), and its released code.

``program`` is the language with the published programs, ``rewrites`` the legal transforms, ``costs`` says what a
program takes and tries all rewrites.
"""
