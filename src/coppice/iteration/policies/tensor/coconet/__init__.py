"""Programs of computation and collectives, and rewrites that preserve their semantics (CoCoNet).

Source: Jangda et al., "Breaking the Computation and Communication Abstraction Barrier in Distributed Machine Learning
Workloads" (CoCoNet, ASPLOS 2022), and its released code.

``program`` is the language, ``rewrites`` the legal transforms, ``values`` runs a program with NumPy on several ranks,
``costs`` says what it takes, ``tuner`` tries all rewrites, ``examples`` has the published programs.
"""
