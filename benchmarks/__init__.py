"""Speed and memory, measured: `python -m benchmarks` runs all of it; results go to results/benchmarks/."""
