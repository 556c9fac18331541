"""Training scripts without a GPU: run one rank on fake tensors, and record its step.

``request`` has what a capturing process is given and answers, ``capturing`` runs such processes, ``recognising`` reads
a job off what they recorded, ``job_file`` writes it. The others run inside the process (``worker``): ``fake_gpu`` are
tensors on a GPU that is not there, ``answers`` what ``torch.cuda`` answers, ``values`` what stands in for values,
``groups`` process groups whose other ranks are not there, ``surroundings`` what scripts do besides, ``recorder`` and
``facts`` what is noted.
"""
