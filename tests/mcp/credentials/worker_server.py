"""The server of `server_process` for `perdure worker`. The variable WORKED is "URL FRAMEWORK [--hang]"."""

from __future__ import annotations

import os

from .server_process import make

_url, _framework, *_options = os.environ["WORKED"].split()
server = make(_url, "sdk" if _framework == "sdk" else "fastmcp", hang="--hang" in _options).server
