"""The private names of FastMCP that perdure uses exist, and are used in one module."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fastmcp import FastMCP
from fastmcp.server import dependencies
from fastmcp.server.dependencies import (
    FastMCPRequestContext,
    _background_task_headers,
    _is_client_tool_call,
)
from fastmcp.server.providers import LocalProvider
from fastmcp.server.providers.fastmcp_provider import FastMCPProvider, FastMCPProviderTool
from fastmcp.server.providers.wrapped_provider import _WrappedProvider
from fastmcp.server.transforms import Namespace
from key_value.aio.adapters.pydantic import PydanticAdapter
from mcp.server.lowlevel import Server

import perdure.fastmcp
from perdure.fastmcp import TasksExtension, adapter
from perdure.testing import run_task

from ..mcp.tool_helpers import text_of
from .served import Served, done, modern_of

pytestmark = pytest.mark.anyio

PACKAGE = Path(str(perdure.fastmcp.__file__)).parent
NAMES = {
    "_background_task_headers",
    "_is_client_tool_call",
    "_srctx",
    "_mcp_server",
    "_extensions",
    "_mask_error_details",
    "_server",
    "_original_name",
    "_inner",
    "_state_store",
}


async def test_the_names_are_there() -> None:
    mcp: Served = FastMCP("root", mask_error_details=True)

    @mcp.tool
    async def nap() -> None: ...

    assert _is_client_tool_call() is False
    assert _background_task_headers.get() is None
    assert "_srctx" in FastMCPRequestContext.__dataclass_fields__
    assert isinstance(mcp._mcp_server, Server)
    assert mcp._extensions == {}
    assert mcp._mask_error_details is True
    assert isinstance(mcp._state_store, PydanticAdapter)
    mounted = await FastMCPProvider(mcp).get_tool("nap")
    assert isinstance(mounted, FastMCPProviderTool)
    assert (mounted._server, mounted._original_name) == (mcp, "nap")
    inner = LocalProvider()
    wrapped = inner.wrap_transform(Namespace("sub"))
    assert isinstance(wrapped, _WrappedProvider)
    assert wrapped._inner is inner


def test_they_are_used_in_one_module_which_says_what_happens_without_them() -> None:
    text = (PACKAGE / "adapter.py").read_text()
    listed = set(re.findall(r"[`.](_[a-z_]+)`", text.split('"""')[1]))
    assert listed == NAMES
    for path in sorted(PACKAGE.glob("*.py")):
        ignored = re.findall(r"^.*reportPrivateUsage.*$", path.read_text(), re.MULTILINE)
        assert not ignored or path.name == "adapter.py", ignored


def test_the_package_remains_small() -> None:
    sources = [path.read_text().splitlines() for path in PACKAGE.rglob("*.py")]
    assert len(sources) <= 5
    assert sum(map(len, sources)) <= 800


# What happens without them


def hide(monkeypatch: pytest.MonkeyPatch, owner: type, hidden: str) -> None:
    """Hide an attribute from perdure. FastMCP itself still has it."""

    def patch(method: str, read: Callable[[object, str], object]) -> None:
        def get(self: object, name: str) -> object:
            if name == hidden and sys._getframe(1).f_globals["__name__"] == adapter.__name__:
                raise AttributeError(f"there is no {name}")
            return read(self, name)

        monkeypatch.setattr(owner, method, get)

    for method in ("__getattribute__", "__getattr__"):  # the latter for private attributes of pydantic models
        if hasattr(owner, method):
            patch(method, getattr(owner, method))


async def test_errors_are_masked_and_then_every_task_and_call_fails(
    mcp: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    @mcp.tool(task=True)
    async def stumble() -> None:
        raise ValueError("details")

    async with modern_of(mcp) as client:
        assert text_of((await done(client, "stumble"))["result"]) == "Error calling tool 'stumble': details"
        hide(monkeypatch, FastMCP, "_mask_error_details")
        assert text_of((await done(client, "stumble"))["result"]) == "Error calling tool 'stumble'"
        monkeypatch.delattr(dependencies, "_background_task_headers")
        assert "_background_task_headers" in str(await done(client, "stumble"))
        monkeypatch.delattr(dependencies, "_is_client_tool_call")
        assert (await client.call("stumble")).error["message"] == "Internal server error"


async def test_every_call_fails_without_the_request_to_the_sdk(
    mcp: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @mcp.tool(task=True)
    async def nap() -> None: ...

    async with modern_of(mcp) as client:
        await done(client, "nap")
        hide(monkeypatch, FastMCPRequestContext, "_srctx")
        assert (await client.call("nap")).error["message"] == "Internal server error"
        assert "there is no _srctx" in caplog.text


@pytest.mark.parametrize("name", ["_server", "_original_name"])
async def test_every_call_of_a_tool_of_a_mounted_server_fails(
    mcp: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    sub: Served = FastMCP("sub")

    async def nap() -> str:
        return "slept"

    for server in (mcp, sub):
        server.tool(nap, task=True)
        server.tool(nap, name="plain")
    mcp.mount(sub, namespace="sub")
    async with modern_of(mcp) as client:
        await done(client, "sub_nap")
        hide(monkeypatch, FastMCPProviderTool, name)
        for tool in ("sub_nap", "sub_plain"):
            caplog.clear()
            assert (await client.call(tool)).error["message"] == "Internal server error"
            assert f"there is no {name}" in caplog.text
        assert text_of((await done(client, "nap"))["result"]) == "slept"
        assert text_of((await client.call("plain")).result) == "slept"


async def test_the_server_does_not_start_without_its_low_level_server(
    mcp: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, FastMCP, "_mcp_server")
    app = mcp.http_app()
    with pytest.raises(AttributeError, match="there is no _mcp_server"):
        async with app.router.lifespan_context(app):
            pass


async def test_what_needs_the_tasks_of_a_server_fails_without_its_extensions(
    mcp: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    @mcp.tool(task=True)
    async def nap() -> str:
        return "slept"

    assert text_of(await run_task(mcp, "nap")) == "slept"
    hide(monkeypatch, FastMCP, "_extensions")
    with pytest.raises(AttributeError, match="there is no _extensions"):
        await run_task(mcp, "nap")
    async with modern_of(mcp) as client:
        assert text_of((await done(client, "nap"))["result"]) == "slept"


@pytest.mark.parametrize("is_hidden", [False, True])
async def test_a_transformed_tool_of_a_renamed_mount_is_registered_only_at_its_first_call(
    mcp: Served, extension: TasksExtension, monkeypatch: pytest.MonkeyPatch, *, is_hidden: bool
) -> None:
    sub: Served = FastMCP("sub")

    @sub.tool(task=True)
    async def nap() -> str:
        return "slept"

    mcp.mount(sub, tool_names={"nap": "siesta"})
    if is_hidden:
        hide(monkeypatch, _WrappedProvider, "_inner")
    async with modern_of(mcp) as client:
        known = extension.tasks.adapter
        assert known is not None
        assert ("siesta" in await known.tools()) is not is_hidden
        assert text_of((await done(client, "siesta"))["result"]) == "slept"
