"""All-to-all of unequal blocks, planned from the counts that ranks exchange while it is called."""
