"""Training jobs: model, machines, layout and run options, from one TOML file; estimates and what-if variants.

``tables`` has the tables of the file, ``job`` the job that is made of them, ``file`` reads it, ``paced`` simulates it,
``what_if`` changes it.
"""

from coppice.iteration.job.file import read_job
from coppice.iteration.job.job import TrainingJob

__all__ = ["TrainingJob", "read_job"]
