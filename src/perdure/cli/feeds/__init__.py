"""The `perdure feeds ...` commands, the text that they print, and their progress display."""
