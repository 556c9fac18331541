"""All models by name: transformers, convolutional nets, recommendation models."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coppice.errors import InputError
from coppice.iteration.models import MODELS
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.convolution import resnet, vgg
from coppice.iteration.workload.model import LayeredModel
from coppice.iteration.workload.recommendation import dlrm
from coppice.text import suggestion

LAYERED_MODELS: Mapping[str, Callable[[], LayeredModel]] = {
    "resnet-50": lambda: resnet(50),
    "resnet-101": lambda: resnet(101),
    "resnet-152": lambda: resnet(152),
    "vgg-16": lambda: vgg(16),
    "vgg-19": lambda: vgg(19),
    "dlrm": dlrm,
}
"""Models that are rows of layers, made when they are asked for."""


def any_model(name: str) -> Transformer | LayeredModel:
    """The model of a name.

    Examples:
        >>> [round(any_model(name).parameters) for name in ("vgg-16", "bert-large")]
        [138357544, 335141888]
    """
    if name in LAYERED_MODELS:
        return LAYERED_MODELS[name]()
    if name in MODELS:
        return MODELS[name]
    raise InputError(f"expected a model, found {name!r}: {suggestion(name, [*MODELS, *LAYERED_MODELS])}")
