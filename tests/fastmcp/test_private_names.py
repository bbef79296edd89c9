"""The private names of FastMCP that perdure uses exist, and are used in one module."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastmcp import FastMCP
from fastmcp.server.dependencies import (
    FastMCPRequestContext,
    _background_task_headers,
    _is_client_tool_call,
)
from fastmcp.server.providers import LocalProvider
from fastmcp.server.providers.fastmcp_provider import FastMCPProvider, FastMCPProviderTool
from fastmcp.server.providers.wrapped_provider import _WrappedProvider
from fastmcp.server.transforms import Namespace
from mcp.server.lowlevel import Server

import perdure.fastmcp

from .served import Served

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
