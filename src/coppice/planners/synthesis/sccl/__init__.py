"""SCCL: schedules in steps and rounds, exact by satisfiability (Cai et al., PPoPP 2021)."""
