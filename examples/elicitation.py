"""A tool that asks before it starts and while it runs.

    python examples/elicitation.py

A resolver asks before the task exists. The answer to `task.elicit` may arrive days later, through another
server, after a restart: up to `deadline`, which by default is the ttl of the task, 24 hours.
"""

from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Elicit, Resolve
from pydantic import BaseModel

from perdure import Task, Tasks

tasks = Tasks("sqlite:///elicitation.db")
server: MCPServer[object] = MCPServer("elicitation", **tasks.attach())


class Traveller(BaseModel):
    name: str


def ask_who_travels() -> Elicit[Traveller]:
    return Elicit("Who travels?", Traveller)


@server.tool()
@tasks.durable
async def book_trip(city: str, traveller: Annotated[Traveller, Resolve(ask_who_travels)], task: Task) -> str:
    """Find a trip, and book it if the traveller agrees to the price."""
    await task.report_progress(message=f"looking for a way to {city}")
    price = 40 + 10 * len(city)
    agreed = await task.elicit(
        f"{traveller.name}, the trip to {city} costs {price}. Book it?",
        {"type": "object", "properties": {"book": {"type": "boolean"}}, "required": ["book"]},
        deadline=7 * 24 * 3600,
    )
    if agreed.action != "accept" or not agreed.data["book"]:
        return f"{traveller.name} stays at home"
    return f"{traveller.name} travels to {city} for {price}"


if __name__ == "__main__":
    server.run("streamable-http", port=8002)
