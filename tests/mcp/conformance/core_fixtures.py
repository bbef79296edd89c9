"""The tools, resources and prompts that the conformance suite calls on every server of 2026-07-28.

They have nothing to do with tasks: a server that offers them beside its tasks shows that the extension left
the core protocol alone. The names and the answers are the suite's; none needs a setting of the server,
but the server needs a name and a version, because the suite looks for both.
"""

from __future__ import annotations

import base64
import struct
import warnings
import zlib
from collections.abc import Mapping
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import Message, UserMessage
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    CallToolResult,
    ClientCapabilities,
    Completion,
    CompletionArgument,
    CompletionContext,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    ImageContent,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    PromptReference,
    ResourceTemplateReference,
    SamplingCapability,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import Field

Answer = CallToolResult | InputRequiredResult

PAUSE = 0.02
CITIES = ("paris", "park", "party", "test", "tester")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _png() -> bytes:
    """One red pixel."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\x00\xff\x00\x00")
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def _wav() -> bytes:
    """One silent sample."""
    form = struct.pack("<HHIIHH", 1, 1, 8000, 8000, 1, 8)
    body = (
        b"WAVE" + b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", 1) + b"\x80\x00"
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


PNG = base64.b64encode(_png()).decode()
WAV = base64.b64encode(_wav()).decode()


def _said(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)])


def _image() -> ImageContent:
    return ImageContent(data=PNG, mime_type="image/png")


def _embedded(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))


def _question(message: str, field: str, kind: str = "string") -> ElicitRequest:
    schema: dict[str, Any] = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _sampling(text: str) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=64))


def _ask(asked: Mapping[str, InputRequest], state: str | None = None) -> InputRequiredResult:
    return InputRequiredResult(input_requests=dict(asked), request_state=state)


def _answered(ctx: Context[Any, Any], key: str) -> bool:
    return key in (ctx.input_responses or {})


def _field(ctx: Context[Any, Any], key: str, field: str) -> str | None:
    """What the user typed into `field` of the form `key`; None when no such form was accepted."""
    answer = (ctx.input_responses or {}).get(key)
    if not isinstance(answer, ElicitResult) or answer.action != "accept":
        return None
    value = (answer.content or {}).get(field)
    return None if value is None else str(value)


# Content


async def simple_text() -> CallToolResult:
    return _said("This is a simple text response for testing.")


async def image_content() -> CallToolResult:
    return CallToolResult(content=[_image()])


async def audio_content() -> CallToolResult:
    return CallToolResult(content=[AudioContent(data=WAV, mime_type="audio/wav")])


async def embedded_resource() -> CallToolResult:
    held = _embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    return CallToolResult(content=[held])


async def multiple_content_types() -> CallToolResult:
    text = TextContent(text="Multiple content types test:")
    held = _embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return CallToolResult(content=[text, _image(), held])


async def with_progress(ctx: Context[Any, Any]) -> CallToolResult:
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100, f"{done} of 100")
        await anyio.sleep(PAUSE)
    return _said("Reported three times.")


async def error_handling() -> CallToolResult:
    raise ToolError("This tool intentionally returns an error for testing")


async def custom_header(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "eu",
) -> CallToolResult:
    return _said(f"In {region}.")


# What a server may do to a client that allowed it, and what not


async def missing_capability(ctx: Context[Any, Any]) -> CallToolResult:
    capabilities = ctx.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        needed = ClientCapabilities(sampling=SamplingCapability())
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            "this tool samples",
            {"requiredCapabilities": needed.model_dump(by_alias=True, mode="json", exclude_none=True)},
        )
    return _said("The client samples.")


async def streaming_elicitation(ctx: Context[Any, Any]) -> Answer:
    await ctx.report_progress(1, 2)
    if _answered(ctx, "value"):
        return _said("Asked and answered.")
    return _ask({"value": _question("Which value?", "value")})


async def logging_tool(ctx: Context[Any, Any]) -> CallToolResult:
    """Logs; the SDK must swallow that unless the request asked for a level."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sending = ctx.session.send_log_message("info", "inside the tool", related_request_id=ctx.request_id)  # pyright: ignore[reportDeprecated]
    await sending
    return _said("Logged.")


async def trigger_tool_change(ctx: Context[Any, Any]) -> CallToolResult:
    await ctx.notify_tools_changed()
    return _said("Told those who listen for tools.")


async def trigger_prompt_change(ctx: Context[Any, Any]) -> CallToolResult:
    await ctx.notify_prompts_changed()
    return _said("Told those who listen for prompts.")


# Rounds of input before the answer


async def ask_elicitation(ctx: Context[Any, Any]) -> Answer:
    name = _field(ctx, "user_name", "name")
    if name is not None:
        return _said(f"Hello, {name}!")
    return _ask({"user_name": _question("What is your name?", "name")})


async def ask_sampling(ctx: Context[Any, Any]) -> Answer:
    if _answered(ctx, "capital_question"):
        return _said("Sampled.")
    return _ask({"capital_question": _sampling("What is the capital of France?")})


async def ask_list_roots(ctx: Context[Any, Any]) -> Answer:
    if _answered(ctx, "client_roots"):
        return _said("Saw the roots.")
    return _ask({"client_roots": ListRootsRequest()})


async def ask_request_state(ctx: Context[Any, Any]) -> Answer:
    if ctx.request_state == "asked" and _answered(ctx, "confirm"):
        return _said("state-ok")
    asked = {"confirm": _question("Please confirm", "ok", "boolean")}
    return _ask(asked, "asked")


async def ask_multiple_inputs(ctx: Context[Any, Any]) -> Answer:
    keys = ("user_name", "greeting", "client_roots")
    if ctx.request_state == "three" and all(_answered(ctx, key) for key in keys):
        return _said("All three answered.")
    requests = (_question("What is your name?", "name"), _sampling("Generate a greeting"), ListRootsRequest())
    return _ask(dict(zip(keys, requests, strict=True)), "three")


async def ask_multi_round(ctx: Context[Any, Any]) -> Answer:
    if ctx.request_state == "second" and _answered(ctx, "step2"):
        return _said(f"Likes {_field(ctx, 'step2', 'color')}.")
    if ctx.request_state == "first" and _answered(ctx, "step1"):
        second = {"step2": _question("Step 2: What is your favorite color?", "color")}
        return _ask(second, "second")
    first = {"step1": _question("Step 1: What is your name?", "name")}
    return _ask(first, "first")


async def ask_what_is_allowed(ctx: Context[Any, Any]) -> Answer:
    capabilities = ctx.client_capabilities or ClientCapabilities()
    asked: dict[str, InputRequest] = {}
    if capabilities.elicitation is not None:
        asked["elicited"] = _question("Which value?", "value")
    if capabilities.sampling is not None:
        asked["sampled"] = _sampling("Say something")
    if not asked or any(_answered(ctx, key) for key in asked):
        return _said("Nothing left to ask.")
    return _ask(asked)


# Resources


async def static_text() -> str:
    return "This is the content of the static text resource."


async def static_binary() -> bytes:
    return base64.b64decode(PNG)


async def templated(id: str) -> dict[str, Any]:  # noqa: A002 - the suite's template names it so
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


# Prompts


async def simple_prompt() -> str:
    return "This is a simple prompt for testing."


async def prompt_with_arguments(arg1: str, arg2: str) -> str:
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


async def prompt_with_embedded_resource(resourceUri: str) -> list[Message]:  # noqa: N803 - the suite names it so
    held = _embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
    return [UserMessage(held), UserMessage("Please process the embedded resource above.")]


async def prompt_with_image() -> list[Message]:
    return [UserMessage(_image()), UserMessage("Please analyze the image above.")]


async def asking_prompt(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    context = _field(ctx, "user_context", "context")
    if context is not None:
        return f"In the context of {context}."
    question = _question("What context should the prompt use?", "context")
    return _ask({"user_context": question})


async def complete(
    _ref: PromptReference | ResourceTemplateReference,
    argument: CompletionArgument,
    _context: CompletionContext | None,
) -> Completion:
    values = [city for city in CITIES if city.startswith(argument.value)]
    return Completion(values=values, total=len(values), has_more=False)


TOOLS = {
    "test_simple_text": simple_text,
    "test_image_content": image_content,
    "test_audio_content": audio_content,
    "test_embedded_resource": embedded_resource,
    "test_multiple_content_types": multiple_content_types,
    "test_tool_with_progress": with_progress,
    "test_error_handling": error_handling,
    "test_custom_header": custom_header,
    "test_missing_capability": missing_capability,
    "test_streaming_elicitation": streaming_elicitation,
    "test_logging_tool": logging_tool,
    "test_trigger_tool_change": trigger_tool_change,
    "test_trigger_prompt_change": trigger_prompt_change,
    "test_input_required_result_elicitation": ask_elicitation,
    "test_input_required_result_sampling": ask_sampling,
    "test_input_required_result_list_roots": ask_list_roots,
    "test_input_required_result_request_state": ask_request_state,
    "test_input_required_result_tampered_state": ask_request_state,
    "test_input_required_result_multiple_inputs": ask_multiple_inputs,
    "test_input_required_result_multi_round": ask_multi_round,
    "test_input_required_result_capabilities": ask_what_is_allowed,
}

PROMPTS = {
    "test_simple_prompt": simple_prompt,
    "test_prompt_with_arguments": prompt_with_arguments,
    "test_prompt_with_embedded_resource": prompt_with_embedded_resource,
    "test_prompt_with_image": prompt_with_image,
    "test_input_required_result_prompt": asking_prompt,
}


def add_core_fixtures(server: MCPServer[Any]) -> None:
    """Register all of them on `server`."""
    for name, tool in TOOLS.items():
        server.add_tool(tool, name=name, description=f"Conformance fixture {name}")
    for name, prompt in PROMPTS.items():
        server.prompt(name=name, description=f"Conformance fixture {name}")(prompt)
    text = "Conformance fixture"
    server.resource("test://static-text", name="static-text", description=text, mime_type="text/plain")(
        static_text
    )
    server.resource("test://static-binary", name="static-binary", description=text, mime_type="image/png")(
        static_binary
    )
    server.resource(
        "test://template/{id}/data", name="template", description=text, mime_type="application/json"
    )(templated)
    server.completion()(complete)
