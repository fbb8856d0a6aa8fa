"""The parts of the serving benchmark: arrivals, traces, prompts, the client and the statistics."""
