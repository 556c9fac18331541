"""Lower hand-written slot operations (copies and sums) to steps of thread blocks.

Operations become instructions that wait for each other (``instructions``), which are joined where a
rank passes on what it receives (``fusion``). Channels and thread blocks (``connections``) and one order of everything
(``sequence``) make a program of them (``lower``). What was written down is kept: slots, scratch memory, and the
channels and thread blocks that an operation asks for.
"""
