"""One-sided programs: thread blocks that put data into remote memory and signal, for MSCCL++.

Lowering (``lower``) decides where messages land (``receive_buffers``) and emits puts, signals and waits (``emit``). The
verifier (``verify``) judges form (``structure``), gives every sub-chunk an address (``sub_chunks``), unrolls a program
into events (``events``), finds an order of execution or a deadlock and what holds in every order (``order``), has it
judged with what they touch (``unroll``), and tells their races (``races``).
"""
