"""Published claims about systems, each with commands that measure it here and a verdict that follows."""
