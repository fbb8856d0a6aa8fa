"""What the overload and soak benchmarks share: a tiny model, processes watched over time, clusters that must come to rest."""
