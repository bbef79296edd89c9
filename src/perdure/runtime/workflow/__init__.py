"""Workflows: tasks that consist of named steps. The results of the steps are stored in the checkpoint.

    report = Workflow("report", [
        Step("find", find_rows, {"year": Param("year")}),
        Step("draw", draw_chart, {"rows": Output("find", "rows"), "colour": "blue"}),
    ])
    app.workflow(report, retries=2)  # or, in a durable tool with the same parameters: await run(report, task)

The result of each step is stored when the step ends, and a step that has completed is not run again. If a
step cannot continue, the task asks its client (`input_required`) and releases its worker. After the answer,
the task continues in any process. Read `definition`, then `pauses` (why a workflow pauses), then `execution`.
"""

from .definition import Output, Param, Source, Step, Workflow
from .execution import run
from .pauses import (
    Paused,
    Reason,
    SchemaMismatch,
    ToolError,
    UnresolvableParameters,
    UnresolvedDependency,
)
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
