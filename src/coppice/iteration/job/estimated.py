"""The time and the memory of a job in closed form, whatever its model is."""

from __future__ import annotations

from coppice.iteration.estimate import Cluster, Estimate, estimate
from coppice.iteration.predicted import predict
from coppice.iteration.transformer import Layout, Transformer
from coppice.iteration.workload.model import LayeredModel
from coppice.iteration.workload.steps import optimizer_seconds
from coppice.iteration.workload.times import layer_workload


def estimate_of(model: Transformer | LayeredModel, layout: Layout, cluster: Cluster) -> Estimate:
    """The time of an iteration.

    A transformer is estimated part by part. Replicas of a row of layers sum the gradients of their last micro-batch in
    buckets beside its backward pass (PyTorch DDP, VLDB 2020), which is simulated.

    Args:
        layout: How it lies on the GPUs.

    Examples:
        >>> from coppice.iteration.cluster import cluster_of
        >>> from coppice.iteration.workload.catalogue import resnet
        >>> from coppice.topology.presets import preset
        >>> layout = Layout(data=16, micro_batch=256, global_batch=4096)
        >>> found = estimate_of(resnet(50), layout, cluster_of(preset("dgx-a100", boxes=2)))
        >>> found.gradients < 0.1 * found.compute
        True
    """
    if isinstance(model, Transformer):
        return estimate(model, layout, cluster)
    workload = layer_workload(model, cluster, workers=layout.data, samples=layout.micro_batch)
    once = workload.compute_seconds
    last = predict(workload, "ddp").iteration_seconds
    exchanged = sum(each.exchanged_bytes for each in model.row) * layout.micro_batch
    exchanging = 2 * cluster.exchange_seconds(exchanged, layout.data, 1)
    return Estimate(
        compute=layout.micro_batches * (once - exchanging),
        head=0.0,
        tensor=0.0,
        sends=0.0,
        bubble=0.0,
        gradients=last - once,
        optimizer=optimizer_seconds(model, layout, cluster),
        exchange=layout.micro_batches * exchanging,
        flops=3 * model.forward_flops(layout.global_batch),
        peak=layout.gpus * cluster.device.flops,
    )
