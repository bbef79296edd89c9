"""The file that keeps a login between commands. Only its user can read it.

Bluesky allows 30 logins in five minutes and 300 in a day, so a command that is run every few minutes must not
log in each time. A file that cannot be read or written costs a login, and nothing else.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from tempfile import mkstemp

import msgspec

from .shapes import Tokens

log = logging.getLogger("perdure.feeds")

_PRIVATE = 0o700


class SessionFile:
    """The tokens of one reader at one server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_writable = True

    @classmethod
    def default(cls, service: str, identifier: str, environ: Mapping[str, str]) -> SessionFile | None:
        """Return the file in the user's state folder, or None if the environment names no such folder."""
        state = environ.get("XDG_STATE_HOME") or (
            f"{environ['HOME']}/.local/state" if environ.get("HOME") else ""
        )
        if not state:
            return None
        name = blake2b(f"{service} {identifier}".encode(), digest_size=12).hexdigest()
        return cls(Path(state, "perdure", f"bluesky-{name}.json"))

    def read(self) -> Tokens | None:
        """Return the stored tokens, or None if there are none that can be used."""
        try:
            with self.path.open("rb") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    log.warning("ignored %s: other users can read it", self.path)
                    return None
                return _tokens.decode(file.read())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("ignored %s: %s", self.path, error)
            return None

    def write(self, tokens: Tokens) -> None:
        """Replace the stored tokens. A reader finds the old ones or the new ones."""
        if not self._is_writable:
            return
        try:
            self.path.parent.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            handle, name = mkstemp(dir=self.path.parent)  # which only its user can read
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(msgspec.json.encode(tokens))
                os.replace(name, self.path)  # noqa: PTH105 - of a name
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            self._is_writable = False
            log.warning("the login is not kept for the next command: %s", error)


_tokens = msgspec.json.Decoder(Tokens)
