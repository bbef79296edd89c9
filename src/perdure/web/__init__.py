"""The dashboard: the tasks of all owners, live, in a browser. It needs the extra `web`.

Read `dashboard` (how it is put together), `security` (who has access), `live` (how an open page is updated),
then the pages: `overview`, `tasks`, `feeds`.
"""

from ..operating.access import LOOPBACK_HOSTS
from .dashboard import Dashboard

__all__ = ["LOOPBACK_HOSTS", "Dashboard"]
