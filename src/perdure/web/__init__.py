"""The dashboard: a web application that shows the tasks of all owners, live. It needs `perdure[web]`.

Start with `dashboard` (the application), `security` (access control) and `live` (updates of open pages). The
pages are in `overview`, `tasks` and `feeds`.
"""

from ..operating.access import LOOPBACK_HOSTS
from .dashboard import Dashboard

__all__ = ["LOOPBACK_HOSTS", "Dashboard"]
