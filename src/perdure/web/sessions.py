"""What a browser shows to be let in, and to prove that a form came from our own page. Pure.

Nothing is kept on the server: a cookie holds chance, and everything else is authenticated with a key that
follows from the token, slowly, so that nobody finds a token by trying many on what a page shows. So a restart
logs nobody out, and replicas with the same token agree. Without a token the key is chance.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from ..operating.token import MIN_TOKEN_LENGTH
from ..storage import Micros

LASTS: Micros = 7 * 24 * 3600 * 1_000_000
"""How long a login does."""


class Sessions:
    def __init__(self, token: str | None) -> None:
        if token is not None and len(token.strip()) < MIN_TOKEN_LENGTH:
            raise ValueError(
                f"the dashboard's token must have at least {MIN_TOKEN_LENGTH} characters; "
                "make one with secrets.token_urlsafe()"
            )
        self._token = token
        self._key = secrets.token_bytes(32) if token is None else _key_of(token)

    @property
    def are_needed(self) -> bool:
        return self._token is not None

    def is_token(self, given: str) -> bool:
        """Whether this is the token, in a time that does not tell how much of it is right."""
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())

    def new_browser(self) -> str:
        """A name for a browser that only it knows."""
        return secrets.token_urlsafe(24)

    def opened(self, browser: str, *, now: Micros) -> str:
        """The cookie of a browser that has shown the token."""
        until = str(now + LASTS)
        return f"{until}.{self._mac('session', browser, until)}"

    def is_open(self, browser: str, session: str, *, now: Micros) -> bool:
        until, _, mac = session.partition(".")
        if not hmac.compare_digest(mac.encode(), self._mac("session", browser, until).encode()):
            return False
        return now < int(until)

    def form_key(self, browser: str) -> str:
        """What every form of this browser carries. Another site can neither read nor compute it."""
        return self._mac("form", browser)

    def is_form_key(self, browser: str, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.form_key(browser).encode())

    def _mac(self, *parts: str) -> str:
        return hmac.new(self._key, "\0".join(parts).encode(), hashlib.sha256).hexdigest()


def _key_of(token: str) -> bytes:
    return hashlib.scrypt(token.encode(), salt=b"perdure-web", n=2**14, r=8, p=1, dklen=32)
