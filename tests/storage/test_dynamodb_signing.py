"""Signatures of the sender: they equal those of the driver, and use the driver's credentials."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

import pytest
from botocore.auth import SigV4Auth  # pyright: ignore[reportMissingTypeStubs]
from botocore.awsrequest import AWSRequest  # pyright: ignore[reportMissingTypeStubs]
from botocore.credentials import ReadOnlyCredentials  # pyright: ignore[reportMissingTypeStubs]
from hypothesis import given
from hypothesis import strategies as st

from perdure.storage.dynamodb.request_signer import FrozenCredentials, SigningContext, signing_context_from
from perdure.storage.kit.servers.dynamodb import REGION

from .. import servers
from .dynamodb_signing import GOOD, Refusal, Rotating, front_of, header, item, pair_on

pytestmark = pytest.mark.anyio

TARGET = "DynamoDB_20120810.PutItem"
STAMP = "%Y%m%dT%H%M%SZ"


# Signatures

WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/,"), min_size=1)
KEYS = st.builds(
    ReadOnlyCredentials, access_key=WORDS, secret_key=WORDS, token=st.none() | WORDS, account_id=st.none()
)
URLS = st.sampled_from(
    [
        "http://localhost:8000/",
        "http://127.0.0.1/",
        "http://[::1]:8000/",
        "http://Somewhere.Example:80/",
        "https://dynamodb.eu-west-1.amazonaws.com/",
        "https://123456789012.ddb.eu-west-1.amazonaws.com/",
        "https://vpce-1.dynamodb.us-east-1.vpce.amazonaws.com:443/",
        "https://gateway.example:8443/some/path~x/",
        "https://gateway.example/with space/",
    ]
)
TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(lambda time: time.strftime(STAMP))
BODIES = st.binary(min_size=1)
REGIONS = st.sampled_from(["us-east-1", "eu-west-1", "local"])


def by_driver(url: str, keys: Any, region: str, body: bytes, stamp: str) -> Any:  # noqa: ANN401
    """Return a request that the driver has signed for this time."""
    auth = cast("Any", SigV4Auth(keys, "dynamodb", region))
    headers = {"X-Amz-Target": TARGET, "Content-Type": "application/x-amz-json-1.0", "User-Agent": "a  b"}
    request = cast("Any", AWSRequest("POST", url, headers=headers, data=body))
    request.headers["X-Amz-Date"] = request.context["timestamp"] = stamp
    if keys.token:
        request.headers["X-Amz-Security-Token"] = keys.token
    signed = auth.signed_headers(auth.headers_to_sign(request))
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    credential = f"Credential={auth.scope(request)}, SignedHeaders={signed}, Signature={signature}"
    request.headers["Authorization"] = f"AWS4-HMAC-SHA256 {credential}"
    return request.prepare()


@given(URLS, KEYS, REGIONS, BODIES, TIMES, st.lists(st.tuples(BODIES, TIMES), min_size=1))
def test_a_signature_is_the_drivers(
    url: str, keys: FrozenCredentials, region: str, body: bytes, stamp: str, more: list[tuple[bytes, str]]
) -> None:
    """The context of one request gives the right signatures for other requests at other times."""
    context = signing_context_from(by_driver(url, keys, region, body, stamp), keys)
    assert isinstance(context, SigningContext)
    assert (context.url, context.operation) == (url, "PutItem")
    for another, time in more:
        wanted = by_driver(url, keys, region, another, time).headers
        headers = context.headers(another, time)
        assert headers["authorization"] == wanted["Authorization"]
        assert headers.get("x-amz-security-token") == (keys.token or None)
        assert {name.lower() for name in wanted} - headers.keys() == {"content-length"}


@pytest.mark.parametrize("url", ["http://h/?x=1", "http://h/a//b/../c"])
def test_an_address_that_is_not_understood_is_left_to_the_driver(url: str) -> None:
    keys: Any = cast("Any", ReadOnlyCredentials)("key", "secret", None, None)
    assert signing_context_from(by_driver(url, keys, REGION, b"{}", "20261116T060647Z"), keys) is None


def test_a_request_that_was_signed_with_other_keys_teaches_nothing() -> None:
    make = cast("Any", ReadOnlyCredentials)
    for others in (make("key", "other", None, None), make("other", "secret", None, None)):
        request = by_driver("http://h/", make("key", "secret", None, None), REGION, b"{}", "20261116T060647Z")
        assert signing_context_from(request, others) is None


def add_before_signing(params: Any, **_: object) -> None:  # noqa: ANN401
    params["headers"]["X-Mine"] = str(len(params["body"]))


def add_after_signing(request: Any, **_: object) -> None:  # noqa: ANN401
    request.headers["X-Mine"] = str(len(request.body))


@pytest.mark.parametrize(
    ("event", "add"),
    [("before-call.dynamodb", add_before_signing), ("before-send.dynamodb", add_after_signing)],
    ids=["signed", "unsigned"],
)
async def test_a_client_whose_requests_carry_something_unknown_keeps_sending_them_itself(
    event: str, add: Callable[..., None]
) -> None:
    async with front_of(servers.dynoxide().port) as front, pair_on(f"http://127.0.0.1:{front.port}") as pair:
        pair.db.meta.events.register(event, add)
        for _ in range(3):
            before = pair.driven
            assert await pair.put() == {}
            assert pair.driven == before + 1
            assert header(front.heads[-1], "x-mine") == header(front.heads[-1], "content-length")


# Credentials


async def test_credentials_are_as_new_as_the_drivers() -> None:
    source = Rotating()
    async with pair_on(servers.extenddb().endpoint, source=source) as pair:
        question = {"TableName": pair.table, "Item": item("k")}
        for _ in range(2):
            await pair.learn_to_put()
            source.now = (GOOD[0], "another secret", "")
            response = await pair.by_driver("put_item", question)
            assert isinstance(response, Refusal)
            assert await pair.by_sender("put_item", question) == response
            source.now = GOOD


async def test_changed_credentials_are_used_from_the_next_request_on() -> None:
    """The driver sends the first request after a change: another account may have another address."""
    source = Rotating()
    async with (
        front_of(servers.dynoxide().port) as front,
        pair_on(f"http://127.0.0.1:{front.port}", source=source) as pair,
    ):
        for access_key, token in (("one", ""), ("two", "token"), ("two", "other"), ("three", "")):
            source.now = (access_key, "secret", token)
            for is_short in (False, True, True):
                before = pair.driven
                await pair.put()
                assert (pair.driven == before) == is_short
                assert f"Credential={access_key}/" in header(front.heads[-1], "authorization")
                assert header(front.heads[-1], "x-amz-security-token") == token
