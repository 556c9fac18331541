"""Put/signal programs: host calls of every rank that perform a schedule with stock GPU libraries.

Since release 2.29 NCCL, and RCCL after it, put data into a window of any rank's memory and signal it, without kernels
and without a program of their own (``ncclPutSignal``, ``ncclSignal``, ``ncclWaitSignal``). Lowering (``lower``) puts
transfers into rounds (``rounds``), assigns receive buffers and the credits that senders wait for
(``receive_buffers``), and emits the calls (``emit``). The verifier (``verify``) judges form (``structure``), matches
waits with signals (``order``), and has the program judged as what it unrolls into with all that the documents promise
(``unroll``).

What the machine may do, action by action, is told once more and independently: natively, with data, under adversarial
schedules (``fuzzer``).
"""
