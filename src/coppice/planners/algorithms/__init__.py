"""Known collective algorithms, one file per idea; :mod:`.catalogue` looks them up by name."""
