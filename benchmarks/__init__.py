"""What perdure costs, in ratios to the floor of the machine. `python -m benchmarks` measures it."""
