"""Put/signal programs: what every rank's host issues, so that stock GPU libraries carry out a schedule.

Since release 2.29 NCCL, and RCCL after it, put data into a window of any rank's memory and signal it, without kernels
and without a program of their own (``ncclPutSignal``, ``ncclSignal``, ``ncclWaitSignal``). Lowering (``lower``) puts
transfers into rounds (``rounds``), decides where every message lands and which credits its sender waits for
(``landings``), and emits the calls (``emit``). The verifier (``verify``) judges form (``structure``), matches waits
with signals (``order``), and has the program judged as what it unrolls into with all that the documents promise
(``unroll``).

What the machine may do, action by action, is told once more and independently (``machine``): exhaustively, as a judge
of small programs (``explore``), and natively, with data (``contents``) under adversarial schedules (``twin``), where
memory counts in stretches that operations take whole (``stretches``). ``faults`` has words for what goes wrong.
"""
