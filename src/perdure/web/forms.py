"""Reading what a browser posts: bounded, and only if the form is one of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .security import Sessions

MOST_BYTES = 1024 * 1024
MOST_FIELDS = 1000
KEY = "form_key"
"""The hidden field that proves that a form is ours."""

Form: TypeAlias = "ImmutableMultiDict[str, str]"
Posted: TypeAlias = Callable[[Request, Form], Awaitable[Response]]


def post(path: str, handler: Posted, sessions: Sessions) -> Route:
    """A route for a form. There is no other way to a POST, so none is unchecked."""

    async def checked(request: Request) -> Response:
        form = await _read(request)
        state = request.state
        if not (state.has_token or sessions.is_form_key(state.browser, form.get(KEY, ""))):
            raise HTTPException(
                403, "This form is not from this browser's own page. Go back, reload, try again."
            )
        return await handler(request, form)

    return Route(path, checked, methods=["POST"], name=f"POST {path}")


async def _read(request: Request) -> Form:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"A form may hold {MOST_BYTES} bytes.")
    try:
        fields = parse_qsl(
            body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=MOST_FIELDS
        )
    except ValueError as error:
        raise HTTPException(400, "This is not a form.") from error
    return ImmutableMultiDict(fields)
