"""The dashboard: everybody's tasks, live, in a browser. Needs the extra `web`.

Read `dashboard` (how it is put together), `security` (who may ask), `live` (how an open page is
kept up to date), then the pages: `overview`, `tasks`, `feeds`.
"""

from .dashboard import Dashboard
from .security import LOOPBACK

__all__ = ["LOOPBACK", "Dashboard"]
