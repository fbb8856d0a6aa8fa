"""The parts of the slow-link benchmark: two hosts with a cable between them, a cluster across it, and a client beside it."""
