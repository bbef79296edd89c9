"""Opening: URLs, the creation of the table, and tables that are refused without being changed."""

from __future__ import annotations

import asyncio
import json
import re
import traceback
from pathlib import Path
from typing import Any

import pytest

from perdure.storage import Insert, migrate_storage, open_storage
from perdure.storage.dynamodb import table_setup
from perdure.storage.dynamodb.items import FORMAT_KEY, FORMAT_VERSION
from perdure.storage.dynamodb.location import parse_url
from perdure.storage.dynamodb.table_setup import TTL_ATTRIBUTE, table_definition
from perdure.storage.errors import (
    CannotOpen,
    ForeignStorage,
    MissingSchema,
    NewerSchema,
    StorageUnavailable,
)
from perdure.storage.kit.sample_records import NOW, insert_each, make_record
from perdure.storage.kit.servers.process import free_port

from .. import servers
from .dynamodb_helpers import TEST_TIMEOUT, client_of, items_of, table_of
from .dynamodb_proxy import Answer, Error, Fault, Loss, proxy_to

pytestmark = pytest.mark.anyio

GOING = Answer({"Table": {"TableStatus": "DELETING"}})
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "dynamodb.md"


def test_a_url_names_a_table_and_says_how_to_reach_it() -> None:
    url = "dynamodb://tasks?endpoint_url=http%3A%2F%2Flocalhost%3A8000&region_name=eu-west-1"
    location = parse_url(f"{url}&profile_name=work&attempts=3&timeout=2.5&connections=10")
    options = location.options
    assert location.table == "tasks"
    assert options.endpoint_url == "http://localhost:8000"
    assert (options.region_name, options.profile_name) == ("eu-west-1", "work")
    assert (options.attempts, options.timeout, options.connections) == (3, 2.5, 10)


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb:",
        "dynamodb://",
        "dynamodb:///tasks",
        "dynamodb://ta",
        "dynamodb://tasks:80",
        "dynamodb://tasks/more",
        "dynamodb://tasks#part",
        "dynamodb://tasks?attempts=0",
        "dynamodb://tasks?attempts=many",
        "dynamodb://tasks?timeout=nan",
        "dynamodb://tasks?timeout=0",
        "dynamodb://tasks?aws_secret_access_key=s",
        "dynamodb://tasks?nonsense",
    ],
)
async def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(CannotOpen):
        await open_storage(url)


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://AKIA:SECRET@tasks",
        "dynamodb://AKIA%3ASECRET%40tasks",
        "dynamodb://SECRET[tasks",
        "dynamodb://SECRET\u2100tasks",
        "dynamodb:///tasks?region_name=SECRET",
        "dynamodb://tasks/SECRET",
        "dynamodb://tasks#SECRET",
        "dynamodb://tasks?SECRET",
        "dynamodb://tasks?aws_secret_access_key=SECRET",
        "dynamodb://tasks?attempts=SECRET",
        "dynamodb://tasks?timeout=nan&region_name=SECRET",
        "dynamodb://tasks?endpoint_url=http://me:SECRET@localhost",
    ],
)
def test_a_url_that_is_refused_is_not_repeated(url: str) -> None:
    with pytest.raises(CannotOpen) as raised:
        parse_url(url)
    message = "".join(traceback.format_exception(raised.value, limit=0))
    assert "SECRET" not in message


async def test_a_missing_table_is_reported_without_the_options_of_the_url() -> None:
    with pytest.raises(MissingSchema) as raised:
        await open_storage(servers.dynoxide().new_url("&timeout=7.25"))
    assert "7.25" not in str(raised.value)


@pytest.mark.parametrize("start", [servers.dynoxide, servers.extenddb], ids=["dynoxide", "extenddb"])
async def test_migrate_makes_the_table_once_and_opening_never_does(start: Any) -> None:  # noqa: ANN401
    server = start()
    url = server.new_url()
    with pytest.raises(
        MissingSchema, match=re.escape(f"perdure migrate --url 'dynamodb://{table_of(url)}?...'")
    ):
        await open_storage(url)
    await migrate_storage(url)
    await migrate_storage(url)
    async with client_of(server.endpoint) as db:
        answer = await db.describe_time_to_live(TableName=table_of(url))
        stored = (await db.describe_table(TableName=table_of(url)))["Table"]
    assert answer["TimeToLiveDescription"]["AttributeName"] == TTL_ATTRIBUTE
    assert answer["TimeToLiveDescription"]["TimeToLiveStatus"] == "ENABLED"
    assert stored["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record())


async def test_two_concurrent_migrations_both_succeed() -> None:
    url = servers.dynoxide().new_url()
    async with proxy_to(servers.dynoxide().port) as proxy:
        through = url.replace(str(servers.dynoxide().port), str(proxy.port))
        proxy.fail("DescribeTable", Error("ResourceNotFoundException"))  # as if both started at the same time
        await migrate_storage(url)
        await migrate_storage(through)


async def test_a_table_that_is_being_deleted_is_waited_for_and_made_again() -> None:
    async with proxy_to(servers.dynoxide().port) as proxy:
        proxy.fail("DescribeTable", GOING, GOING)
        url = proxy.new_url()
        async with asyncio.timeout(TEST_TIMEOUT):
            await migrate_storage(url)
        async with await open_storage(url) as storage:
            await insert_each(storage, make_record())


async def test_a_table_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_setup, "MAX_CREATE_SECONDS", 0.0)
    async with proxy_to(servers.dynoxide().port) as proxy:
        proxy.rule = lambda operation, _: GOING if operation == "DescribeTable" else None
        with pytest.raises(CannotOpen, match="DELETING"):
            async with asyncio.timeout(TEST_TIMEOUT):
                await migrate_storage(proxy.new_url())


async def test_a_table_that_cannot_be_used_yet_is_unavailable() -> None:
    async with proxy_to(servers.dynoxide().port) as proxy:
        proxy.fail("DescribeTable", GOING)
        with pytest.raises(StorageUnavailable, match="DELETING"):
            await open_storage(proxy.new_url())


@pytest.mark.parametrize("fault", [Error("ThrottlingException"), Loss.REQUEST, Loss.ANSWER], ids=str)
@pytest.mark.parametrize(
    "operation", ["DescribeTable", "CreateTable", "DescribeTimeToLive", "UpdateTimeToLive"]
)
async def test_migrating_gets_over_what_passes(operation: str, fault: Fault) -> None:
    async with proxy_to(servers.dynoxide().port) as proxy:
        proxy.fail(operation, fault, fault)
        url = proxy.new_url()
        await migrate_storage(url)
        assert proxy.asked[operation] >= 3
        async with client_of(proxy.endpoint) as db:
            answer = await db.describe_time_to_live(TableName=table_of(url))
    assert answer["TimeToLiveDescription"]["TimeToLiveStatus"] == "ENABLED"


async def test_a_migration_succeeds_if_another_enabled_the_time_to_live() -> None:
    """AWS rejects a second attempt to enable it."""
    async with proxy_to(servers.dynoxide().port) as proxy:
        proxy.fail("UpdateTimeToLive", Error("ValidationException"))
        await migrate_storage(proxy.new_url())
        assert proxy.asked["UpdateTimeToLive"] == 1


async def test_opening_gets_over_what_passes() -> None:
    async with proxy_to(servers.dynoxide().port) as proxy:
        url = proxy.new_url()
        await migrate_storage(url)
        proxy.fail("DescribeTable", Error("ThrottlingException"), Loss.ANSWER)
        async with await open_storage(url) as storage:
            await insert_each(storage, make_record())


async def test_a_table_of_another_application_is_refused_and_left_alone() -> None:
    server = servers.dynoxide()
    url = server.new_url()
    async with client_of(server.endpoint) as db:
        await db.create_table(
            TableName=table_of(url),
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        )
        for refused in (open_storage(url), migrate_storage(url)):
            with pytest.raises(ForeignStorage):
                await refused
        answer = await db.describe_time_to_live(TableName=table_of(url))
        assert answer["TimeToLiveDescription"]["TimeToLiveStatus"] == "DISABLED"


@pytest.mark.parametrize("lacking", ["LocalSecondaryIndexes", "GlobalSecondaryIndexes"])
async def test_a_table_that_lacks_an_index_is_refused(lacking: str) -> None:
    server = servers.dynoxide()
    url = server.new_url()
    made = table_definition()
    gone = made[lacking].pop()
    used = {key["AttributeName"] for kind in ("LocalSecondaryIndexes", "GlobalSecondaryIndexes")
            for index in made[kind] for key in index["KeySchema"]} | {"pk", "sk"}  # fmt: skip
    made["AttributeDefinitions"] = [
        each for each in made["AttributeDefinitions"] if each["AttributeName"] in used
    ]
    assert gone["IndexName"]
    async with client_of(server.endpoint) as db:
        await db.create_table(TableName=table_of(url), **made)
    with pytest.raises(ForeignStorage):
        await open_storage(url)


async def everything_in(db: Any, table: str) -> list[Any]:  # noqa: ANN401
    return await items_of(db, table, "")


async def expect_refused_and_left_alone(db: Any, url: str, kind: type[CannotOpen], why: str) -> None:  # noqa: ANN401
    before = await everything_in(db, table_of(url))
    for refused in (open_storage(url), migrate_storage(url)):
        with pytest.raises(kind, match=why):
            await refused
    assert await everything_in(db, table_of(url)) == before


@pytest.mark.parametrize("start", [servers.dynoxide, servers.extenddb], ids=["dynoxide", "extenddb"])
async def test_a_table_of_a_later_format_is_refused_and_left_alone(start: Any) -> None:  # noqa: ANN401
    server = start()
    url = server.new_url()
    await migrate_storage(url)
    async with client_of(server.endpoint) as db:
        later = {**FORMAT_KEY.item, "number": {"N": str(FORMAT_VERSION + 1)}}
        await db.put_item(TableName=table_of(url), Item=later)
        await expect_refused_and_left_alone(db, url, NewerSchema, "upgrade perdure")


async def test_a_table_with_records_and_no_format_number_is_refused_and_left_alone() -> None:
    server = servers.dynoxide()
    url = server.new_url()
    await migrate_storage(url)
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record())
    async with client_of(server.endpoint) as db:
        await db.delete_item(TableName=table_of(url), Key=FORMAT_KEY.item)
        await expect_refused_and_left_alone(db, url, CannotOpen, "earlier development version")


async def test_several_clients_may_be_the_first_to_open_a_table_made_by_other_means() -> None:
    server = servers.dynoxide()
    url = server.new_url()
    async with client_of(server.endpoint) as db:
        await db.create_table(TableName=table_of(url), **table_definition())
        storages = await asyncio.gather(*[open_storage(url) for _ in range(4)])
        await asyncio.gather(*[insert_each(each, make_record(f"k{n}")) for n, each in enumerate(storages)])
        for storage in storages:
            await storage.close()
        [item] = [each for each in await everything_in(db, table_of(url)) if each["pk"] == {"S": "format"}]
    assert item["number"] == {"N": str(FORMAT_VERSION)}


async def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = servers.dynoxide().new_url()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(CannotOpen, match="AWS_ACCESS_KEY_ID"):
        await open_storage(url)


async def test_wrong_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    url = servers.extenddb().new_url()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(CannotOpen, match="credentials"):
        await open_storage(url)


async def test_a_profile_that_does_not_exist_and_no_region_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotOpen, match="profile_name"):
        await open_storage("dynamodb://tasks?profile_name=unknown")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(CannotOpen, match="region_name"):
        await open_storage("dynamodb://tasks")


async def test_an_unreachable_server_is_unavailable() -> None:
    servers.dynoxide()  # sets the credentials
    with pytest.raises(StorageUnavailable):
        await open_storage(f"dynamodb://tasks?region_name=x&endpoint_url=http://127.0.0.1:{free_port()}")


async def test_the_credentials_may_not_use_it() -> None:
    async with proxy_to(servers.dynoxide().port) as proxy:
        proxy.fail("DescribeTable", Error("AccessDeniedException"))
        with pytest.raises(CannotOpen, match=r"access denied .* grant the permissions that"):
            await open_storage(proxy.new_url())


async def test_the_template_in_the_docs_makes_the_same_table() -> None:
    [template] = re.findall(
        r"```json\n(\{\"AWSTemplateFormatVersion\".*?)```", DOCS.read_text("utf-8"), re.DOTALL
    )
    table = json.loads(template)["Resources"]["PerdureTable"]
    properties = table["Properties"]
    assert table["Type"] == "AWS::DynamoDB::Table"
    assert properties.pop("TimeToLiveSpecification") == {"AttributeName": TTL_ATTRIBUTE, "Enabled": True}
    assert properties.pop("TableName") == "tasks"
    assert properties == table_definition()
    server = servers.dynoxide()
    url = server.new_url()
    async with client_of(server.endpoint) as db:
        await db.create_table(TableName=table_of(url), **properties)
    async with await open_storage(url) as storage:
        await storage.commit([Insert(record=make_record())], now=NOW)
