"""Tasks over HTTP. `comparison` explains what is measured and how it is judged."""
