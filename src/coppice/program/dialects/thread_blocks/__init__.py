"""Two-sided programs: thread blocks that send and receive over bounded FIFOs, for MSCCL and related runtimes.

Lowering (``lower``) deals transfers out to channels (``channels``, ``nics``) and thread blocks (``assignment``) and
emits their steps (``emit``). The verifier (``verify``) judges form (``structure``), finds an order of execution or a
deadlock (``order``), has the program judged as what it unrolls into (``unroll``), and tells its races (``races``). What
people write down themselves, slot by slot, is lowered by ``operations/``.
"""
