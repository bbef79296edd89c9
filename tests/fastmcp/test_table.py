"""The table of features in the guide is the one that the tests prove."""

from __future__ import annotations

import ast

from tools import fastmcp_table


def test_the_table_of_the_guide_is_current() -> None:
    page = fastmcp_table.PAGE.read_text("utf-8")
    assert fastmcp_table.page_with_table(page) == page, "run: python -m tools.fastmcp_table"


PEER = {
    "TasksExtension(url, name, worker_name, concurrency, ...)": (
        "`TasksExtension(url=...)`",
        "`TasksExtension(concurrency=...)`",
        "`name`, `worker_name` and other options of docket",
    ),
    "task=True, TaskConfig(mode)": ("`task=True`, `TaskConfig(mode=...)`", "plain `def` tools"),
    "TaskConfig(poll_interval)": ("`TaskConfig(poll_interval=...)`",),
    "FastMCP(tasks=True), task=False; no extension": (
        "`FastMCP(tasks=True)`, `task=False`",
        "`task=True` without an extension",
    ),
    "tasks/get, update, cancel": ("`tasks/get`, `tasks/update`, `tasks/cancel`",),
    "ctx: Context, CurrentContext(), get_context()": (
        "`ctx: Context`, `CurrentContext()`, `get_context()`",
        "`ctx.info`, `ctx.log` and the others",
        "`ctx.send_notification`, `ctx.enable_components`, `ctx.disable_components`",
    ),
    "ctx.is_background_task, task_id, origin_request_id": (
        "`ctx.is_background_task`, `ctx.task_id`, `ctx.origin_request_id`",
    ),
    "ctx.report_progress, Progress()": ("`ctx.report_progress`, `Progress()`, also in `Depends`",),
    "Depends, Shared, CallArgument, context managers": (
        "`Depends`, `Shared`, `CallArgument`, context managers",
    ),
    "CurrentFastMCP(), get_server(), ctx.lifespan_context": (
        "`CurrentFastMCP()`, `get_server()`, `ctx.fastmcp`, `ctx.lifespan_context`",
    ),
    "get_access_token(), CurrentAccessToken(), TokenClaim()": (
        "`get_access_token()`, `CurrentAccessToken()`, `TokenClaim()`",
    ),
    "get_http_headers(), CurrentHeaders()": ("`get_http_headers()`, `CurrentHeaders()`",),
    "get_http_request(), CurrentRequest()": ("`get_http_request()`, `CurrentRequest()`",),
    "ctx.session_id, get_state, set_state": ("`ctx.session_id`, `ctx.get_state`, `ctx.set_state`",),
    "guard: InputRequiredResult": ("a tool that returns `InputRequiredResult` (guard pattern)",),
    "await ctx.elicit()": ("`await ctx.elicit(...)`",),
    "mounted, nested, namespaced tools": ("tools of mounted servers, nested and with prefixes",),
    "proxies; transformed tools, mount(tool_names=)": (
        "tools behind a proxy",
        "transformed tools, `mount(tool_names=...)`",
    ),
    "Tool.from_function(task=), providers, subclasses of Tool, catalogs, versions": (
        "`Tool.from_function(task=...)`, providers, subclasses of `Tool`, versions",
        "catalogs: search transforms, `CodeMode`",
    ),
    "tools added after the start; middleware of the root": (
        "tools that are added after the server has started",
        "middleware",
        "calls by tools and middleware (`ctx.fastmcp.call_tool`)",
    ),
    "call_tool_task(client, ...), ToolTask, automatic Client": (
        "`call_tool_task`, `ToolTask`, and `Client.call_tool`, which waits for the task",
        "`progress_handler` of a `Client`",
    ),
    "FASTMCP_TASKS_ENCRYPTION_KEY; FASTMCP_DOCKET_*": ("`FASTMCP_DOCKET_*`, `FASTMCP_TASKS_ENCRYPTION_KEY`",),
    "python -m fastmcp_tasks.worker_cli worker": ("`python -m fastmcp_tasks.worker_cli worker`",),
    "CurrentDocket(), CurrentWorker(), docket's parameters": (
        "`Retry`, `Timeout`, `ConcurrencyLimit`, `CurrentDocket()` and the other parameters of docket",
        "`task=TaskOptions(retries=..., retry_on=..., timeout=..., ttl=...)`",
    ),
    "errors, in several of these": ("errors",),
}
"""The features of fastmcp-tasks 4.1, by its public names, with the rows of the guide that cover each."""


def test_every_feature_of_fastmcp_tasks_has_rows_and_tests() -> None:
    covering = [name for names in PEER.values() for name in names]
    assert sorted(covering) == sorted(row.name for row in fastmcp_table.features())


def test_every_test_with_a_feature_is_in_the_table() -> None:
    marked = 0
    for path in fastmcp_table.TESTS.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            decorators = getattr(node, "decorator_list", [])
            marked += sum(ast.unparse(each).startswith("feature(") for each in decorators)
    assert len(fastmcp_table.features()) == marked
