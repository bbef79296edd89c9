"""The `perdure tasks ...` commands, which let operators see and manage the tasks of all owners."""
