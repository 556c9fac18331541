"""Jobs: a model, a cluster, a layout and how it runs, from one TOML file; and a job simulated task by task.

``record`` has the tables of the file, ``file`` reads it, ``job`` makes the job of it, ``simulated`` runs it.
"""

from coppice.iteration.job.file import read_job
from coppice.iteration.job.job import TrainingJob
from coppice.iteration.job.simulated import SimulatedJob, simulate_job

__all__ = ["SimulatedJob", "TrainingJob", "read_job", "simulate_job"]
