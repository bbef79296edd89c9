"""The `perdure feeds ...` commands, with their output and their progress display."""
