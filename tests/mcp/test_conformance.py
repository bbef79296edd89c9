"""The public judges: the conformance suite, the official TypeScript client, the Inspector, and the client of
FastMCP.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError
from fastmcp_tasks import call_tool_task  # pyright: ignore[reportUnknownVariableType], of a Client of anything

from .conformance import suite
from .conformance.core_fixtures import add_core_fixtures
from .conformance.suite import TASK_SCENARIOS
from .conformance_server import make_server
from .raw_clients import serving

pytestmark = pytest.mark.anyio

FLOWS = {"2026-07-28": 16, "2025-11-25": 20}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One loop for the module, because its server lives as long."""
    return "asyncio"


@pytest.fixture(scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncGenerator[str]:
    server, _ = make_server(f"sqlite:///{tmp_path_factory.mktemp('judged') / 'tasks.db'}")
    add_core_fixtures(server)
    async with serving(server.streamable_http_app()) as endpoint:
        yield endpoint


# The conformance suite


def test_the_suite_has_44_checks_of_tasks() -> None:
    assert len(TASK_SCENARIOS) == 10
    assert sum(TASK_SCENARIOS.values()) == 44


@pytest.mark.parametrize("scenario", TASK_SCENARIOS)
async def test_every_check_of_the_scenario_passes(url: str, scenario: str, tmp_path: Path) -> None:
    verdict = await suite.run_scenario(url, scenario, tmp_path)

    assert verdict.failures == (), verdict.output
    assert verdict.exit_code == 0, verdict.output
    assert len(verdict.scored) == TASK_SCENARIOS[scenario], verdict.output


async def test_the_core_of_2026_07_28_is_served_as_it_requires(url: str, tmp_path: Path) -> None:
    verdict = await suite.run_requirements(url, tmp_path)

    assert verdict.exit_code == 0, verdict.output
    assert {check.scenario for check in verdict.scored} > TASK_SCENARIOS.keys() - {
        "tasks-status-notifications"
    }


async def test_without_the_judges_the_remedy_is_named_and_nothing_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(suite, "CONFORMANCE", tmp_path / "nothing.js")

    with pytest.raises(suite.NotInstalled, match="make test"):
        await suite.run_scenario("http://127.0.0.1:1/mcp", "tasks-lifecycle", tmp_path)
    with pytest.raises(suite.NotInstalled, match="make test"):
        await suite.drive("http://127.0.0.1:1/mcp")


# The official TypeScript client


@pytest.mark.parametrize("generation", FLOWS)
async def test_the_official_client_gets_through_every_flow(url: str, generation: str) -> None:
    exit_code, flows = await suite.drive(url, generation=generation)

    assert [str(flow) for flow in flows if not flow.ok] == []
    assert len(flows) == FLOWS[generation]
    assert exit_code == 0


# The Inspector, which declares neither forms nor sampling


@pytest.mark.parametrize("generation", suite.ERAS)
async def test_the_inspector_gets_the_result_of_a_task(url: str, generation: str) -> None:
    arguments = {"seconds": 0.1, "label": "x"}
    exit_code, output = await suite.inspect(url, generation, "slow_compute", arguments)

    assert exit_code == 0, output
    assert "computed x in 0.1 seconds" in output


@pytest.mark.parametrize("generation", suite.ERAS)
async def test_the_inspector_is_refused_a_question_that_it_cannot_answer(url: str, generation: str) -> None:
    exit_code, output = await suite.inspect(url, generation, "confirm_delete", {"filename": "a.txt"})

    assert exit_code != 0
    assert "the client cannot answer elicitation/create" in output


# The client of FastMCP, which drives a task without telling its caller


def text_of(result: Any) -> str:
    return "".join(block.text for block in result.content)


async def test_fastmcp_gets_the_result_of_a_task_as_that_of_the_call(url: str) -> None:
    async with Client(url) as client:
        result = await client.call_tool("slow_compute", {"seconds": 0.1, "label": "x"})

    assert text_of(result) == "computed x in 0.1 seconds"


async def test_fastmcp_sees_an_error_of_the_tool_as_one(url: str) -> None:
    async with Client(url) as client:
        result = await client.call_tool("failing_job", raise_on_error=False)

    assert result.is_error
    assert text_of(result) == "Error executing tool failing_job"  # the SDK tells no client more


async def test_fastmcp_raises_the_protocol_error_of_a_task(url: str) -> None:
    async with Client(url) as client:
        task = await call_tool_task(client, "protocol_error_job")

        with pytest.raises(ToolError, match="the job broke the protocol"):
            await task.result()
        assert (await task.status()).status == "failed"


async def test_fastmcp_cancels_a_task(url: str) -> None:
    async with Client(url) as client:
        task = await call_tool_task(client, "slow_compute", {"seconds": 60})
        await task.cancel()

        assert (await task.wait(timeout=15)).status == "cancelled"


@pytest.mark.parametrize(("confirm", "said"), [(True, "deleted a.txt"), (False, "kept a.txt")])
async def test_fastmcp_answers_what_a_task_asks(url: str, confirm: bool, said: str) -> None:  # noqa: FBT001
    async def answering(message: str, *_: object) -> ElicitResult[dict[str, bool]]:
        assert message == "Delete a.txt?"
        return ElicitResult(action="accept", content={"confirm": confirm})

    async with Client(url, elicitation_handler=answering) as client:
        result = await client.call_tool("confirm_delete", {"filename": "a.txt"})

    assert text_of(result) == said


async def test_fastmcp_answers_two_questions_at_once(url: str) -> None:
    async def answering(*_: object) -> ElicitResult[dict[str, bool]]:
        return ElicitResult(action="accept", content={"confirm": True})

    async with Client(url, elicitation_handler=answering) as client:
        result = await client.call_tool("multi_input")

    assert text_of(result) == "first: accept, second: accept"
