"""Models as workloads: operators of their layers, and what these take on a device.

``operators`` says what a layer is made of, ``transformers`` which operators transformers have, ``nets`` those of other
models, and ``times`` what an operator, a layer and a workload of layers take on a device, which may be a measured one.
"""
