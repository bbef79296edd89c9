"""Tasks belong to the user that the token names; other users cannot see, answer or cancel them.

    python examples/authenticated.py

Ada's token is `ada-secret`, Bob's is `bob-secret`. A real server verifies tokens of an authorization server.
"""

import anyio
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl

from perdure import Task, Tasks
from perdure.tasks import StoreConfig

ISSUER = "https://issuer.example"
USERS = {"ada-secret": "ada", "bob-secret": "bob"}


class KnownTokens(TokenVerifier):
    async def verify_token(self, token: str) -> AccessToken | None:
        user = USERS.get(token)
        if user is None:
            return None
        return AccessToken(token=token, client_id="example", scopes=[], subject=user, claims={"iss": ISSUER})


tasks = Tasks("sqlite:///authenticated.db", store=StoreConfig(max_tasks_per_owner=10))
server: MCPServer[object] = MCPServer(
    "authenticated",
    token_verifier=KnownTokens(),
    auth=AuthSettings(issuer_url=AnyHttpUrl(ISSUER), resource_server_url=None),
    **tasks.attach(),
)


@server.tool()
@tasks.durable
async def archive(folder: str, task: Task) -> str:
    """Archive a folder for the caller."""
    await task.report_progress(message=f"archiving {folder} for {task.owner.subject}")
    await anyio.sleep(2)
    return f"{folder} is archived for {task.owner.subject}"


if __name__ == "__main__":
    server.run("streamable-http", port=8001)
