"""The torch backend: a process group whose collectives are planned."""
