"""Models as workloads: computation, memory traffic and communication per layer, and their times on a device.

``model`` says what a model offers, ``catalogue`` has the models by name, ``times`` the layers of transformers and the
seconds of layers on a device, which may be a measured one.
"""
