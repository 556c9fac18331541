"""Per-rank programs: the steps of every GPU's thread blocks, as runtimes read them from files.

There are two machine models, each with a folder of its own. In *two-sided* programs (MSCCL and its relatives) thread
blocks send and receive over FIFOs; in *one-sided* programs (MSCCL++) they put data into each other's memory and signal.
Each folder describes its programs (``program``), lowers a schedule or a forest to them (``lower``), verifies them
without trust in who made them (``verify``), and finds the schedule that they carry out (``to_schedule``).

What stands here is common to all: buffers, addresses, and what they hold at the start and must hold at the end
(``memory``), where a lowered schedule keeps its chunks (``buffer_layout``) and in which messages it moves them
(``messages``), how a deadlock is told (``deadlock``), and the schedule of single moves (``moves``). Every program is
judged as what it unrolls into (``model``), by one judge: what always comes before what (``order``), races (``judge``),
and values (``values``), the faults of which it says in words (``faults``).
"""
