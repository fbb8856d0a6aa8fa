"""Behind `benchmarks.policies` and `benchmarks.step_cost`: what a step costs, a server on a virtual clock, figures, tables."""
