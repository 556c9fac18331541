"""The parts of an exported script, which knows nothing of Coppice: imports in parentheses are left out there."""
