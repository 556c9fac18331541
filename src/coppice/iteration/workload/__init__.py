"""Models as workloads: what each of their layers computes, moves, keeps and sends, and how long that takes on a device.

``model`` says what a model offers, ``attention``, ``convolution`` and ``recommendation`` are its kinds, ``catalogue``
the models by name, ``times`` the seconds of layers on a device, which may be a measured one.
"""
