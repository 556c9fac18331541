"""Jobs: a model, machines, a layout and how it runs, from one TOML file; what they take, and what they would take.

``record`` has the tables of the file, ``file`` reads it, ``job`` makes the job, ``paced`` simulates it, ``what_if``
changes it.
"""

from coppice.iteration.job.file import read_job
from coppice.iteration.job.job import TrainingJob

__all__ = ["TrainingJob", "read_job"]
