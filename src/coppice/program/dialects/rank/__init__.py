"""Rank programs: rows that every rank sends, receives, reduces and copies, for the engines of this package.

Lowering (``lower``) puts a schedule into steps (``steps``), gives transfers memory (``layout``) and cuts them into rows
of sub-chunks (``rows``). The verifier (``verify``) has the programs of all ranks judged as what they unroll into
(``unroll``).
"""
