"""Tree algorithms: broadcast, reduce and all-reduce, also with switches."""
