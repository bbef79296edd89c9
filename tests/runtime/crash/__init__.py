"""The crash test: workers, servers and clients on one storage, killed and frozen at any moment, then judged.

Read `journal` (what each process notes), `recording` (how every read and write of a record gets there),
`functions` (the work), `child` and `acting` (the processes), `storm` (who kills them), then `checking`.
"""
