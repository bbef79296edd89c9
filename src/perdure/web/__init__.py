"""The dashboard: everybody's tasks, live, in a browser. Needs the extra `web`.

Read `dashboard` (how it is put together), `guarding` (who may ask), `screens` and `live` (how an open page is
kept up to date), then the pages: `overview`, `tasks`, `task`, `feeds`.
"""

from .dashboard import Dashboard
from .guarding import LOOPBACK

__all__ = ["LOOPBACK", "Dashboard"]
