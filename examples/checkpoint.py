"""A long job that resumes from its last checkpoint, however often the server is killed.

    python examples/checkpoint.py

When `save_checkpoint` returns, the checkpoint is stored; clients can neither read nor change it. Kill the
server with `kill -9` while it counts, start it again, and it continues to count.
"""

import anyio
from mcp.server import MCPServer

from perdure import Task, Tasks
from perdure.runtime import Retry

tasks = Tasks("sqlite:///checkpoint.db")
server: MCPServer[object] = MCPServer("checkpoint", **tasks.attach())


@server.tool()
@tasks.durable(retries=100)
async def count_words(chapters: int, task: Task) -> dict[str, int]:
    """Count the words of a long book, chapter by chapter."""
    words = task.checkpoint.get_int("words", 0)
    for chapter in range(task.checkpoint.get_int("chapter", 0) + 1, chapters + 1):
        await task.report_progress(chapter - 1, chapters, f"chapter {chapter} of {chapters}")
        words += await words_of(chapter)
        await task.save_checkpoint({"chapter": chapter, "words": words})
    return {"chapters": chapters, "words": words}


async def words_of(chapter: int) -> int:
    await anyio.sleep(1)
    if chapter < 1:
        raise Retry("the library is closed", after=60)  # runs again in a minute, from the checkpoint
    return 1000 + chapter


if __name__ == "__main__":
    server.run("streamable-http", port=8003)
