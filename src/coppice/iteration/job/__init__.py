"""Jobs: a model, a cluster, a layout and how it runs, from one TOML file.

``record`` has the tables of the file, ``file`` reads it, ``job`` makes the job of it.
"""

from coppice.iteration.job.file import read_job
from coppice.iteration.job.job import TrainingJob

__all__ = ["TrainingJob", "read_job"]
