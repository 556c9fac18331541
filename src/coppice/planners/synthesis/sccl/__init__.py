"""SCCL (Cai et al., PPoPP 2021): schedules in steps and rounds, exact by SMT."""
