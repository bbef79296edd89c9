"""`perdure serve`: a server and its dashboard in one process.

Read `command` and `plan` (the options), `finding` (whose server it is), `site` (what stands at which path),
`running` (how it starts and ends), `poller` (feeds) and `greeting` (what is said about it).
"""

from .command import serve

__all__ = ["serve"]
