"""After the storm others' tasks are as they were, and work goes on.

This is the last file of the folder by its name, and the server is the one that all the others stormed.
"""

from __future__ import annotations

import threading

from ..raw_clients import MODERN
from .fuzz_server import Server


def test_after_the_storm_others_tasks_are_as_they_were_and_work_goes_on(server: Server) -> None:
    assert server.get(server.control, who="victim") == server.before

    answer = {"go": {"action": "accept", "content": {"ok": True}}}
    reply = server.send(
        MODERN, "tasks/update", {"taskId": server.control, "inputResponses": answer}, who="victim"
    )
    assert reply.code is None
    while (task := server.get(server.control, who="victim"))["status"] not in ("completed", "failed"):
        threading.Event().wait(0.02)
    assert task["result"]["content"][0]["text"] == "held "
    done = server.start("quick", who="victim")
    assert server.get(done, who="victim")["result"]["content"][0]["text"] == "done "
