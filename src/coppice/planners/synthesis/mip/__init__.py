"""What the methods that solve mixed-integer programs share: the program, the links between ranks, the timed sends."""
