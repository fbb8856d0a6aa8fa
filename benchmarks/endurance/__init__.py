"""What the overload and soak benchmarks are made of: a tiny model, processes watched over time, clusters that must come to rest."""
