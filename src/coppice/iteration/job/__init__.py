"""Training jobs: model, machines, layout and run options, from one TOML file; estimates and what-if variants.

``tables`` has the tables of the file, ``job`` what is made of them, ``file`` reads it. ``composed`` simulates a job
under policies, ``compared`` and ``advice`` compare them, ``tuned`` tunes them, ``what_if`` changes the job.
"""

from coppice.iteration.job.file import read_job
from coppice.iteration.job.job import TrainingJob

__all__ = ["TrainingJob", "read_job"]
