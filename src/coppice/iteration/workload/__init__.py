"""Models as workloads: what each of their layers computes, moves, keeps and sends, and how long that takes on a device.

``model`` says what a model offers, ``catalogue`` has the models by name, ``times`` the layers of transformers and the
seconds of layers on a device, which may be a measured one.
"""
