"""What `perdure serve` does not serve: it ends at once, with one sentence, and makes no file."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ..fork_server import PIPE, spawn
from .serve_process import TOKEN, refused
from .user_servers import OWN_FASTMCP, OWN_LOW_LEVEL, OWN_SERVER

pytestmark = pytest.mark.anyio

SHORT = "fifteen-letters"
GENERATE_ONE = 'generate a token with: python -c "import secrets; print(secrets.token_urlsafe(24))"'


def without(argument: str) -> str:
    """A server that is built with two of the three arguments."""
    given = f"{{name: given for name, given in tasks.attach().items() if name != {argument!r}}}"
    return OWN_SERVER.replace("tasks.attach()", given, 1)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])  # noqa: S104 - refused
async def test_what_others_can_reach_needs_a_token(tmp_path: Path, host: str) -> None:
    assert f"{host} is reachable from other machines" in await refused(tmp_path, "--host", host)
    assert f"{host} is reachable from other machines" in await refused(
        tmp_path, "--host", host, "--dashboard-token", TOKEN
    )  # which guards the dashboard alone


async def test_a_name_that_others_use_needs_a_token_and_is_no_address(tmp_path: Path) -> None:
    assert "tasks.example is reachable from other machines" in await refused(
        tmp_path, "--allowed-host", "tasks.example"
    )
    said = await refused(tmp_path, "--allowed-host", "https://tasks.example", "--token", TOKEN)
    assert "invalid --allowed-host https://tasks.example; use a host name without a scheme or port" in said


@pytest.mark.parametrize(
    ("option", "what"), [("--token", "the token"), ("--dashboard-token", "the dashboard token")]
)
async def test_a_token_that_no_header_can_carry_or_that_is_guessed_is_refused(
    tmp_path: Path, option: str, what: str
) -> None:
    said = await refused(tmp_path, option, "pass wörd of some length")
    assert f"{what} must be printable ASCII" in said
    said = await refused(tmp_path, option, SHORT)
    assert f"{what} must have at least 16 characters; {GENERATE_ONE}" in said
    assert SHORT not in said


async def test_the_token_that_is_made_as_told_is_long_enough(tmp_path: Path) -> None:
    words = GENERATE_ONE.partition("python ")[2].replace('"', "").split(" ", 1)
    made = await (await spawn(*words, stdout=PIPE)).communicate()
    said = await refused(tmp_path, "--token", made[0].decode().strip(), "nowhere:server")
    assert "no module named 'nowhere'" in said


async def test_a_port_that_was_asked_for_and_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said = await refused(tmp_path, "--port", port)
    assert f"port {port} on 127.0.0.1 is in use; choose another" in said


@pytest.mark.parametrize(
    ("arguments", "because"),
    [
        (["own"], "invalid name 'own'; use the form module:server"),
        (["nowhere:server"], "no module named 'nowhere'"),
        (["own:nothing"], "module own has no attribute 'nothing'"),
        (
            ["own:text"],
            "own:text is a str, not an MCPServer, Server or FastMCP, nor an App, which a worker runs",
        ),
        (["own:app"], "run it with: perdure worker own:app"),
        (["own:tasks"], "own:tasks is a Tasks object; give the name of its server instead"),
        (
            ["own:without"],
            "own:without has no Tasks attached; build it with MCPServer(..., **tasks.attach())",
        ),
        (
            ["own:server", "--url", "memory:"],
            "perdure: --url cannot be used with own:server; set it in the code of own:server\n",
        ),
        (["own:server", "--no-sample-feeds"], "--sample-feeds cannot be used with own:server"),
        (["--url", "mysql://there"], "unknown URL scheme"),
        (["--url", "sqlite:////nowhere/at/all.db"], "create /nowhere/at"),
        (["--host", "no.such.host.invalid", "--token", TOKEN], "invalid --host no.such.host.invalid"),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, list) else "",  # pyright: ignore
)
async def test_what_cannot_be_served_is_told_in_one_sentence(
    tmp_path: Path, arguments: list[str], because: str
) -> None:
    (tmp_path / "own.py").write_text(OWN_SERVER)
    assert because in await refused(tmp_path, *arguments)


@pytest.mark.parametrize(
    ("code", "because"),
    [
        (
            OWN_FASTMCP.replace('server.add_extension(TasksExtension("memory:"))\n', ""),
            "own:server has no tasks; call mcp.add_extension(TasksExtension(url)), from perdure.fastmcp, on",
        ),
        (OWN_LOW_LEVEL.replace("tasks.install(server)", ""), "call tasks.install(server) before it starts"),
        (without("lifespan"), "the server lacks the lifespan; build it with MCPServer("),
        (without("extensions"), "the server lacks the extension; build it with MCPServer("),
        (without("middleware"), "own:server has no Tasks attached; build it with MCPServer("),
    ],
    ids=["fastmcp", "low-level", "lifespan", "extensions", "middleware"],
)
async def test_a_server_without_its_tasks_is_refused_with_the_advice_for_its_framework(
    tmp_path: Path, code: str, because: str
) -> None:
    (tmp_path / "own.py").write_text(code)
    assert because in await refused(tmp_path, "own:server")


@pytest.mark.parametrize(
    ("decorators", "because"),
    [
        (
            "@tasks.durable\n@server.tool()\n",
            "perdure: tool: 'brew' is not durable: it was registered before its function was made durable; "
            "write @tasks.durable below @server.tool(), directly above the function\n",
        ),
        (
            "@tasks.durable\n",
            "perdure: function: 'brew' is durable but is not a tool of this server; write @server.tool() "
            "directly above @tasks.durable\n",
        ),
    ],
    ids=["order", "unregistered"],
)
async def test_a_server_whose_tool_is_not_durable_is_not_started(
    tmp_path: Path, decorators: str, because: str
) -> None:
    wrong = OWN_SERVER.replace("@server.tool()\n@tasks.durable\n", decorators).replace(", task: Task", "")
    (tmp_path / "own.py").write_text(wrong)
    assert await refused(tmp_path, "own:server") == because


async def test_a_tool_that_takes_a_task_and_is_not_durable_is_refused_when_it_is_registered(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text(OWN_SERVER.replace("@tasks.durable\n", ""))
    said = await refused(tmp_path, "own:server")
    assert said.startswith("perdure: cannot import own:\n")
    assert "function: takes a Task, but is not durable; write @tasks.durable directly above" in said


async def test_a_database_that_does_not_answer_is_worth_another_try(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_SERVER)
    said = await refused(tmp_path, "own:unreachable", code=1)
    assert "the server is unreachable" in said
    assert said.endswith("; try again later\n")
    assert "hunter2" not in said


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['jinja2'] = None; from perdure.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-B", "-c", code, "serve"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended
    assert "install the web extra: pip install 'perdure[web]', or use" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []
