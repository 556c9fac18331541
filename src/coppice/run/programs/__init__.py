"""Programs of ranks as engines carry them out: lowered from schedules, cut into pieces, checked and kept."""
