"""The dashboard: a web application that shows the tasks of all owners, live. It needs `perdure[web]`.

Start with `dashboard` (the application), `security` (access control) and `live` (updates of open pages). The
pages are in `overview`, `tasks` and `feeds`.
"""

from ..storage.install_advice import without_extra
from ..storage.loopback_address import LOOPBACK_HOSTS

try:
    from .dashboard import Dashboard
except ModuleNotFoundError as error:
    raise without_extra("web", error) from error

__all__ = ["LOOPBACK_HOSTS", "Dashboard"]
