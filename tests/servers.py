"""The servers of a test run: each is started when first needed, once per process, and closed at its end.

`PERDURE_WITHOUT` names engines that a run leaves out on purpose; anything else that is missing fails the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from perdure.storage.kit.servers import (
    CREDENTIALS,
    DynamoDbLocal,
    Dynoxide,
    ExtendDb,
    Postgres,
    Server,
    Valkey,
    ValkeyCluster,
    ValkeySentinel,
)
from perdure.storage.kit.servers.postgres import of_system

S = TypeVar("S", bound=Server | ValkeyCluster | ValkeySentinel)

LEFT_OUT = frozenset(filter(None, os.environ.get("PERDURE_WITHOUT", "").split(",")))
LOCAL_JAR = os.environ.get("PERDURE_DYNAMODB_LOCAL")
"""Where Amazon's DynamoDB Local is, for who has it and wants it; docs/dynamodb.md tells how."""

_open: list[Server | ValkeyCluster | ValkeySentinel] = []


def close_all() -> None:
    """At the end of the run."""
    while _open:
        _open.pop().close()


@cache
def postgres() -> Postgres:
    return _started(Postgres)


@cache
def system_postgres() -> Postgres:
    """The version that the system has, which is older."""
    return _started(lambda: Postgres(of_system()))


@cache
def valkey() -> Valkey:
    return _started(Valkey)


@cache
def valkey_cluster() -> ValkeyCluster:
    return _started(ValkeyCluster)


@cache
def dynoxide() -> Dynoxide:
    os.environ.update(CREDENTIALS)
    return _started(Dynoxide)


@cache
def extenddb() -> ExtendDb:
    os.environ.update(CREDENTIALS)
    return _started(ExtendDb)


@cache
def dynamodb_local() -> DynamoDbLocal:
    os.environ.update(CREDENTIALS)
    return _started(lambda: DynamoDbLocal(Path(LOCAL_JAR or "")))


def _started(make: Callable[[], S]) -> S:
    server = make()
    _open.append(server)
    server.start()
    return server
