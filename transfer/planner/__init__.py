"""What the network can carry and who may use it when. Pure values and functions: no clock, no I/O, no torch."""
