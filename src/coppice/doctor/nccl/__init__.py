"""Doctor rules for files of NCCL and RCCL: tuner tables, graphs, topologies."""

from coppice.doctor.nccl.tuner import RULES as TUNER_RULES
from coppice.doctor.nccl.tuner import TunerTable
from coppice.doctor.nccl.xml_files import GRAPH_RULES, TOPO_RULES, NcclGraphFile, NcclTopoFile

__all__ = ["GRAPH_RULES", "TOPO_RULES", "TUNER_RULES", "NcclGraphFile", "NcclTopoFile", "TunerTable"]
