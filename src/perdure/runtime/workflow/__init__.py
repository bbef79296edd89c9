"""Step workflows: a task made of named steps, each with its result, kept in the task's variables.

    report = Workflow("report", [
        Step("find", find_rows, {"year": Param("year")}),
        Step("draw", draw_chart, {"rows": Output("find", "rows"), "colour": "blue"}),
    ])
    app.workflow(report, retries=2)  # or `await run(report, task)`, in a durable tool of the same parameters

Each step is written as it ends, so one that is done is never done again. Where a step cannot go on, the task
asks its client (`input_required`) and lets go of its worker; the answer, from wherever, lets it continue.
Read `definition`, then `pausing` (why it stops), then `running`.
"""

from .definition import Output, Param, Source, Step, Workflow
from .pausing import (
    Paused,
    Reason,
    SchemaMismatch,
    ToolError,
    UnresolvableParameters,
    UnresolvedDependency,
)
from .running import run
from .state import StepState, WorkflowState, state_of

__all__ = [
    "Output",
    "Param",
    "Paused",
    "Reason",
    "SchemaMismatch",
    "Source",
    "Step",
    "StepState",
    "ToolError",
    "UnresolvableParameters",
    "UnresolvedDependency",
    "Workflow",
    "WorkflowState",
    "run",
    "state_of",
]
