"""The contract kit: checks that show whether a storage engine keeps the promises of the storage contract.

`CHECKS` contains all checks. `run` runs them and returns a report. The module `state_machine`, which needs
`perdure[kit]`, compares the results of random calls with a model. The docstring of `check_framework` has
examples.
"""

from importlib import import_module

from .check_framework import (
    CHECKS,
    Check,
    ContractViolation,
    Factory,
    MissingCapability,
    Report,
    Result,
    Subject,
    run,
)
from .linearizability import Get, Operation, Recorder, Write, is_linearizable

for _kind in (
    "commit",
    "name_and_body",
    "query",
    "guard_and_expiry",
    "concurrency",
    "reopen_and_close",
    "damage",
):
    import_module(f".{_kind}_checks", __package__)  # each module adds its checks to CHECKS

__all__ = [
    "CHECKS",
    "Check",
    "ContractViolation",
    "Factory",
    "Get",
    "MissingCapability",
    "Operation",
    "Recorder",
    "Report",
    "Result",
    "Subject",
    "Write",
    "is_linearizable",
    "run",
]
