"""Models as workloads: computation, memory traffic and communication per layer, and their times on a device.

``catalogue`` has the models by name and says what one offers, ``times`` the layers of transformers and the
seconds of layers on a device, which may be a measured one.
"""
