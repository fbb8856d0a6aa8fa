"""What `benchmarks.router_load` is made of: workers without a model, servers on cores of their own, a cheap client."""
