"""What all ways of training with torch share: a launcher of work in a given order, and the errors of lost ranks."""
