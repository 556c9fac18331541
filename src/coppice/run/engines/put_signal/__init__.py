"""Execute put/signal programs: one engine over several devices.

The engine (``engine``) issues the calls of a program on a *device* (``device``): the emulated device, whose
ranks are threads or processes that share memory and whose data land late (``emulated``, ``emulated_segment``), torch's
symmetric memory (``symmetric``), or NCCL's own calls through nccl4py (``nccl``); the two on GPUs add and copy with
torch (``cuda``). ``opening`` chooses among them.
"""
