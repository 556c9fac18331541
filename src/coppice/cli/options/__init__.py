"""Options that several commands share: topologies, problems, sizes."""
