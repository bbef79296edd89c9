"""Tasks over HTTP. Read `contest`: what is measured, and how it is judged."""
