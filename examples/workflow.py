"""A workflow as a tool: each step is stored when it completes, and missing values are requested from the
client.

python examples/workflow.py
"""

from mcp.server import MCPServer

from perdure import Task, Tasks
from perdure.runtime.workflow import Output, Param, Step, Workflow, run

tasks = Tasks("sqlite:///workflow.db")
server: MCPServer[object] = MCPServer("workflow", **tasks.attach())


async def find_address(customer: str) -> dict[str, str]:
    return {"street": f"{len(customer)} Long Street", "city": "Lisbon"}


async def weigh(items: list[str]) -> dict[str, int]:
    return {"grams": 100 * len(items)}


async def ship(street: str, grams: int, carrier: str) -> dict[str, str]:
    return {"label": f"{carrier}: {grams} g to {street}"}


shipping = Workflow(
    "shipping",
    [
        Step("address", find_address, {"customer": Param("customer")}),
        Step("weight", weigh, {"items": Param("items")}),
        Step(
            "ship",
            ship,
            {
                "street": Output("address", "street"),
                "grams": Output("weight", "grams"),
                "carrier": Param("carrier"),  # not an argument of the tool: requested from the client
            },
        ),
    ],
)


@server.tool()
@tasks.durable
async def ship_order(customer: str, items: list[str], task: Task) -> dict[str, str]:
    """Ship an order: find the address, weigh the items, and hand it to a carrier."""
    return await run(shipping, task)  # pyright: ignore[reportReturnType]


if __name__ == "__main__":
    server.run("streamable-http", port=8004)
