"""The server with all of its tools, for the replicas and for most workers."""

from .tool_server import TOOLS, make_server

server = make_server(*TOOLS)
