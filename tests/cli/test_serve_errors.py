"""What `perdure serve` does not serve: it ends at once, with one sentence, and makes no file."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.serve import command
from perdure.storage.install_advice import install_command

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
    output = await refused(tmp_path, "--allowed-host", "https://tasks.example", "--token", TOKEN)
    assert "invalid --allowed-host https://tasks.example; use a host name without a scheme or port" in output


@pytest.mark.parametrize(
    ("option", "what"), [("--token", "the token"), ("--dashboard-token", "the dashboard token")]
)
async def test_a_token_that_no_header_can_carry_or_that_is_guessed_is_refused(
    tmp_path: Path, option: str, what: str
) -> None:
    output = await refused(tmp_path, option, "pass wörd of some length")
    assert f"{what} must be printable ASCII" in output
    output = await refused(tmp_path, option, SHORT)
    assert f"{what} must have at least 16 characters; {GENERATE_ONE}" in output
    assert SHORT not in output


async def test_the_token_that_the_suggested_command_makes_is_long_enough(tmp_path: Path) -> None:
    words = GENERATE_ONE.partition("python ")[2].replace('"', "").split(" ", 1)
    made = await (await spawn(*words, stdout=PIPE)).communicate()
    output = await refused(tmp_path, "--token", made[0].decode().strip(), "missing:server")
    assert "no module named 'missing'" in output


async def test_a_port_that_was_asked_for_and_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        output = await refused(tmp_path, "--port", port)
    assert f"port {port} on 127.0.0.1 is in use; choose another" in output


def test_another_port_is_reported_with_the_one_that_is_in_use(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        monkeypatch.setattr(command, "FIRST_PORT", first)
        monkeypatch.setattr(command, "LAST_PORT", first + 20)
        with command.ServeOptions().bind() as listener:
            port = listener.getsockname()[1]
        (output,) = caplog.messages
        assert re.match(
            rf"ports? {first} .*in use; serving on port {port} \(choose one with --port\); ", output
        )
        caplog.clear()
    monkeypatch.setattr(command, "LAST_PORT", first)
    with command.ServeOptions().bind() as listener:
        assert listener.getsockname()[1] == first
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("arguments", "because"),
    [
        (["other"], "invalid name 'other'; use the form module:server"),
        (
            ["own"],
            "invalid name 'own'; use own:server (the module, and the variable that contains your server)\n",
        ),
        (["own.py"], "invalid name 'own.py'; use own:server (the module, and "),
        (["my-own.py:app"], "invalid name 'my-own.py:app'; use the form module:server"),
        (["./own.py:app"], "invalid name './own.py:app'; use own:app\n"),
        (["own.py:app"], "invalid name 'own.py:app'; use own:app\n"),
        (["missing:server"], "no module named 'missing'"),
        (["own:nothing"], "module own has no attribute 'nothing'"),
        (
            ["own:text"],
            "own:text has the type str; give the name of an MCPServer, a Server or a FastMCP server (or",
        ),
        (["own:app"], "run it with: perdure worker own:app"),
        (["own:tasks"], "own:tasks is a Tasks object; give the name of its server instead"),
        (
            ["own:without"],
            "own:without has no Tasks object attached; build it with MCPServer(..., **tasks.attach())",
        ),
        (
            ["own:server", "--url", "memory:"],
            "perdure: --url cannot be used with own:server; set it in the code of own:server\n",
        ),
        (["own:server", "--no-sample-feeds"], "--sample-feeds cannot be used with own:server"),
        (["--url", "mysql://there"], "unknown URL scheme"),
        (["--url", "sqlite:////missing/at/all.db"], "create /missing/at"),
        (["--host", "no.such.host.invalid", "--token", TOKEN], "invalid --host no.such.host.invalid"),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, list) else "",  # pyright: ignore
)
async def test_what_cannot_be_served_is_reported_in_one_line(
    tmp_path: Path, arguments: list[str], because: str
) -> None:
    (tmp_path / "my-own.py").write_text(OWN_SERVER)
    (tmp_path / "own.py").write_text(OWN_SERVER)
    assert because in await refused(tmp_path, *arguments)


@pytest.mark.parametrize(
    ("code", "because"),
    [
        (
            OWN_FASTMCP.replace('server.add_extension(TasksExtension("memory:"))\n', ""),
            "own:server has no TasksExtension; import TasksExtension from perdure.fastmcp, call mcp.add_ext",
        ),
        (OWN_LOW_LEVEL.replace("tasks.install(server)", ""), "call tasks.install(server) before it starts"),
        (without("lifespan"), "the server lacks the lifespan; build it with MCPServer("),
        (without("extensions"), "the server lacks the extension; build it with MCPServer("),
        (without("middleware"), "own:server has no Tasks object attached; build it with MCPServer("),
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
    output = await refused(tmp_path, "own:server")
    because = "function: has a Task parameter, but is not durable; write @tasks.durable directly above"
    assert output.startswith(f"perdure: cannot import own: {because}")
    line = OWN_SERVER.replace("@tasks.durable\n", "").splitlines().index("@server.tool()") + 1
    assert output.endswith(f" (own.py, line {line})\n")
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "line", "because"),
    [
        ("@server.tool()\n@tasks.durable\n", "@tasks.durable\n@server.tool()\n", 1, "is not durable; write"),
        ("@tasks.durable\n", "@tasks.durable(retries=-1)\n", 1, "retries: must be an integer, at least 0"),
    ],
    ids=["swapped", "options"],
)
async def test_a_tool_that_is_declared_wrongly_is_named_by_its_line_without_a_traceback(
    tmp_path: Path, old: str, new: str, line: int, because: str
) -> None:
    (tmp_path / "kitchen.py").write_text(OWN_SERVER.replace(old, new))
    (tmp_path / "own.py").write_text("from kitchen import server\n")
    output = await refused(tmp_path, "own:server")
    assert output.startswith("perdure: cannot import own: ")
    assert because in output
    line += OWN_SERVER.splitlines().index("@server.tool()") + 1
    assert output.endswith(f" (kitchen.py, line {line})\n")
    assert output.count("\n") == 1


async def test_any_other_error_of_a_module_keeps_its_traceback_in_the_users_code(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import re\n\nre.compile('(')\n")
    output = await refused(tmp_path, "own:server")
    assert output.startswith("perdure: cannot import own:\n")
    assert 'own.py", line 3, in <module>' in output
    assert "missing ), unterminated subpattern" in output.splitlines()[-1]


async def test_a_database_that_does_not_answer_is_worth_another_try(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_SERVER)
    output = await refused(tmp_path, "own:unreachable", code=1)
    assert "the server is unreachable" in output
    assert output.endswith("; check the host and port of the storage, or try again later\n")
    assert "hunter2" not in output


@pytest.mark.parametrize("first", ["", "from perdure.fastmcp import TasksExtension\n"])
def test_a_server_that_needs_an_extra_which_is_missing_says_what_to_install(
    tmp_path: Path, first: str
) -> None:
    (tmp_path / "own.py").write_text(first + OWN_FASTMCP)
    code = "import sys; sys.modules['fastmcp'] = None; from perdure.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-B", "-c", code, "serve", "own:server"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended
    line = 1 if first else 2
    reason = "the fastmcp extra is not installed (no module named 'fastmcp')"
    advice = f"install it with: {install_command('fastmcp')}"
    assert ended.stderr == f"perdure: cannot import own (own.py, line {line}): {reason}; {advice}\n"


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['jinja2'] = None; from perdure.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-B", "-c", code, "serve"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended
    hint = f"use --no-dashboard, or install it with: {install_command('web')}"
    assert ended.stderr == f"perdure: the dashboard needs the web extra; {hint}\n"
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []
