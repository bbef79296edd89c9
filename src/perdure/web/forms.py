"""Determines the attributes of input elements in HTML forms, and reads and checks submitted forms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..operating.forms import FormField, is_number
from .security import SessionSigner

MAX_FORM_BYTES = 1024 * 1024
MAX_FORM_FIELDS = 1000
CSRF_FIELD = "csrf_token"
"""The name of the hidden field with the CSRF token, which proves that this dashboard sent the form."""
INPUT_TYPES = {"email": "email", "uri": "url", "date": "date"}
"""The HTML input type for each `format` in a JSON schema."""

Form: TypeAlias = "ImmutableMultiDict[str, str]"
FormHandler: TypeAlias = Callable[[Request, Form], Awaitable[Response]]


def input_name(field: FormField) -> str:
    """Return the HTML name of a field. The prefix distinguishes it from other inputs on the page."""
    return f"field.{field.name}"


def input_attributes(field: FormField) -> dict[str, str]:
    """Return the HTML attributes that let the browser check the input."""
    match field.control:
        case "integer" | "number":
            names = {"minimum": "min", "maximum": "max"}
            attributes = {"step": "1" if field.control == "integer" else "any"}
        case "text" | "textarea":
            names = {"minLength": "minlength", "maxLength": "maxlength"}
            attributes = {}
        case _:
            return {}
    bounds = {html: str(field.schema[key]) for key, html in names.items() if is_number(field.schema.get(key))}
    return attributes | bounds


def input_type(field: FormField) -> str:
    if field.control in ("integer", "number"):
        return "number"
    return INPUT_TYPES.get(str(field.schema.get("format")), "text")


def post_route(path: str, handler: FormHandler, signer: SessionSigner) -> Route:
    """Return a route that accepts a form. All POST routes are created here.

    The form must contain a valid CSRF token, unless the request contains the access token.
    """

    async def checked(request: Request) -> Response:
        form = await _read(request)
        state = request.state
        if not (state.has_token or signer.check_csrf_token(state.browser, form.get(CSRF_FIELD, ""))):
            raise HTTPException(403, "This form has expired. Go back, reload the page and try again.")
        return await handler(request, form)

    return Route(path, checked, methods=["POST"], name=f"POST {path}")


async def _read(request: Request) -> Form:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise HTTPException(413, f"The form is too large. The limit is {MAX_FORM_BYTES} bytes.")
    try:
        fields = parse_qsl(
            body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=MAX_FORM_FIELDS
        )
    except ValueError as error:
        raise HTTPException(400, "Invalid form data. Go back, reload the page and try again.") from error
    return ImmutableMultiDict(fields)
