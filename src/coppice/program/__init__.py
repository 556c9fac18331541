"""Per-rank programs: the steps of every GPU's thread blocks, calls or messages, as runtimes carry them out.

A *dialect* is a machine model with a folder of its own in ``dialects``. In *two-sided* programs (``thread_blocks``:
MSCCL and its relatives) thread blocks send and receive over FIFOs; in *one-sided* programs (``puts``: MSCCL++) they put
data into each other's memory and signal; in ``put_signal`` hosts call for puts, signals and waits; in ``rank`` the
engines of this package send and receive. Each folder describes its programs (``program``), lowers a schedule or a
forest to them (``lower``), says what they do when they run (``unroll``), and verifies them without trust in who made
them (``verify``); most find the schedule that a program carries out (``to_schedule``).

What stands here is common to all: buffers, addresses, and what they hold at the start and must hold at the end
(``memory``), where a lowered schedule keeps its chunks (``buffer_layout``) and in which messages it moves them
(``lower``), and the schedule of single moves (``moves``). Every program is judged as what it unrolls into (``model``),
by one judge: what always comes before what, and deadlocks (``order``), races and faults in words (``judge``), and
values (``values``).
"""
