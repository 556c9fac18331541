"""Per-rank programs: lowered from schedules, cut into sub-chunks, verified and cached."""
