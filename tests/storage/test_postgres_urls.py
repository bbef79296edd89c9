"""What a URL may say: our options, the driver's, and no secrets in messages about it."""

from __future__ import annotations

from socket import gaierror
from traceback import format_exception

import pytest

from perdure.storage import open_storage
from perdure.storage.errors import CannotOpen, OutcomeUnknown
from perdure.storage.postgres.errors import as_storage_error
from perdure.storage.postgres.location import parse_url

from .. import servers
from .postgres_helpers import session

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("schema=", "1 to 63 bytes"),
        ("schema=" + "x" * 64, "1 to 63 bytes"),
        ("schema=%C3%A9" + "x" * 62, "1 to 63 bytes"),
        ("schema=a%00b", "must not contain NUL"),
        ("schema=$user", "is reserved by PostgreSQL"),
        ("schema=pg_temp", "is reserved by PostgreSQL"),
        ("schema=%FF", "NAME=VALUE"),
        ("pool=0", "pool"),
        ("pool=many", "pool"),
        ("pooler=session", "pooler"),
        ("migrate=always", "migrate"),
        ("statement_timeout=-1", "statement_timeout"),
        ("lock_timeout=nan", "lock_timeout"),
    ],
)
async def test_an_invalid_option_is_reported(options: str, complaint: str) -> None:
    with pytest.raises(CannotOpen, match=complaint) as caught:
        await open_storage(f"postgresql://user:secret@host/db?{options}")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql:db", "postgresql:/db", "postgresql://u:secret@h/d#f", "postgres://[::1/db"]
)
async def test_a_url_without_a_server_is_reported(url: str) -> None:
    with pytest.raises(CannotOpen, match="the URL is not valid") as caught:
        await open_storage(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "rest",
    [
        "user:s3cr3t/x@host/db",
        "user:x/s3cr3t@host/db",
        "user:s3cr3t?x@host/db",
        "user:x?s3cr3t@host/db",
        "user:s3cr3t#x@host/db",
        "user:x#s3cr3t@host/db",
        "user:x@s3cr3t/x@host/db",
        "user:x@s3cr3t?x@host/db",
        "user:12345/s3cr3t@host/db",
        "user:s3cr3t",
        "user:s3cr3t/db",
        "user:s3cr3t\u2100@host/db",
        "host/db?password=x@s3cr3t",
    ],
)
async def test_a_password_with_unencoded_characters_is_not_shown(rest: str) -> None:
    with pytest.raises(CannotOpen, match="the URL is not valid") as caught:
        await open_storage(f"postgresql://{rest}")
    message = "".join(format_exception(caught.value, limit=0))
    assert "s3cr3t" not in message
    assert "%2F" in message


@pytest.mark.parametrize("hosts", ["a,", ",a", "a,,b"])
async def test_an_empty_host_among_others_is_reported(hosts: str) -> None:
    with pytest.raises(CannotOpen, match="the URL is not valid"):
        await open_storage(f"postgresql://{hosts}/db")


def test_what_is_not_ours_in_a_url_is_left_to_the_driver() -> None:
    location = parse_url(
        "postgres://u:p%40w@a:1,b:2/d%20b?sslmode=require&schema=a%20b&x=%26&pool=3&lock_timeout=0.5"
    )
    assert location.dsns == (
        "postgres://u:p%40w@a:1/d%20b?sslmode=require&x=%26",
        "postgres://u:p%40w@b:2/d%20b?sslmode=require&x=%26",
    )
    assert location.display_name == "postgres://a:1,b:2/d%20b?schema=a%20b"
    assert (location.quoted_schema, location.options.pool, location.lock_timeout_setting) == (
        '"a b"',
        3,
        "500ms",
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (gaierror(-2, "Name or service not known"), "[Errno -2] Name or service not known"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_a_server_that_cannot_be_reached_is_reported_with_the_text_of_the_error(
    error: OSError, reason: str
) -> None:
    location = parse_url("postgresql://user:secret@host/db")
    read = as_storage_error(error, location)
    assert str(read) == f"{location.display_name}: the server is unreachable ({reason})"
    written = as_storage_error(error, location, was_sent=True)
    assert isinstance(written, OutcomeUnknown)
    assert str(written).endswith(f"which may have been applied ({reason})")


async def test_the_servers_own_settings_may_be_given() -> None:
    url = servers.postgres().new_url("&application_name=mine")
    async with await open_storage(url), session(url) as db:
        assert await db.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mine'") >= 1


@pytest.mark.parametrize("option", ["sslmode=what", "stray"])
async def test_an_option_that_the_driver_rejects_is_reported(option: str) -> None:
    with pytest.raises(CannotOpen, match="check the options for asyncpg"):
        await open_storage(f"{servers.postgres().url}?{option}")
