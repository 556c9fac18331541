"""Doctor rules for files of NCCL and RCCL: tuner tables, graphs, topologies."""

from coppice.doctor.nccl import text, tuner  # noqa: F401  (their rules join the tables)
from coppice.doctor.nccl.graph import RULES as GRAPH_RULES
from coppice.doctor.nccl.graph import NcclGraphFile
from coppice.doctor.nccl.topo import RULES as TOPO_RULES
from coppice.doctor.nccl.topo import NcclTopoFile
from coppice.doctor.nccl.tuner_table import RULES as TUNER_RULES
from coppice.doctor.nccl.tuner_table import TunerTable

__all__ = ["GRAPH_RULES", "TOPO_RULES", "TUNER_RULES", "NcclGraphFile", "NcclTopoFile", "TunerTable"]
