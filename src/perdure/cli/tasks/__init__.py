"""`perdure tasks ...`: the tasks of all owners, for the operators of servers."""

from .commands import tasks

__all__ = ["tasks"]
