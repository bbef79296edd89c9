"""The server on a machine that cannot run one of its tools, and does not register it."""

from .tool_server import make_server

server = make_server("light")
