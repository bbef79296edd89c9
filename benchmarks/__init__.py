"""What perdure costs, as ratios to a baseline on the same machine: `python -m benchmarks`."""
