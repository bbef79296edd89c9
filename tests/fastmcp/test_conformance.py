"""The conformance suite passes on a server of FastMCP, on SQLite and, in `make test-all`, on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from ..markers import in_test_all, row
from ..mcp.conformance import suite
from ..mcp.conformance.suite import TASK_SCENARIOS
from ..mcp.raw_clients import serving
from ..storage.engines import new_url
from .conformance_server import make_server

pytestmark = pytest.mark.anyio

ENGINES = ["sqlite", pytest.param("postgres", marks=in_test_all)]
FLOWS = {"2026-07-28": 16, "2025-11-25": 20}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One loop for the module, because its servers live as long."""
    return "asyncio"


@pytest.fixture(scope="module", params=ENGINES)
async def url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncGenerator[str]:
    storage = await new_url(request.param, tmp_path_factory.mktemp("judged"))
    async with serving(make_server(storage).http_app(path="/mcp")) as endpoint:
        yield endpoint


@row(121)
@pytest.mark.parametrize("scenario", TASK_SCENARIOS)
async def test_every_check_of_the_scenario_passes(url: str, scenario: str, tmp_path: Path) -> None:
    verdict = await suite.run_scenario(url, scenario, tmp_path)

    assert verdict.failures == (), verdict.output
    assert verdict.exit_code == 0, verdict.output
    assert len(verdict.scored) == TASK_SCENARIOS[scenario], verdict.output


@pytest.mark.parametrize("generation", FLOWS)
async def test_the_official_client_gets_through_the_flows(url: str, generation: str) -> None:
    exit_code, flows = await suite.drive(url, generation=generation)

    assert [str(flow) for flow in flows if not flow.ok] == []
    assert len(flows) == FLOWS[generation]
    assert exit_code == 0
