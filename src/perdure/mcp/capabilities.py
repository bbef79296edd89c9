"""What clients declare that they can be asked, between the words of the protocol and those of tasks."""

from __future__ import annotations

from mcp_types import (
    ClientCapabilities,
    ElicitationCapability,
    FormElicitationCapability,
    RootsCapability,
    SamplingCapability,
    SamplingToolsCapability,
    UrlElicitationCapability,
)

from ..tasks.inputs import Capability
from .protocol import Request, Wire

_REQUIRED = {
    Capability.FORM: ClientCapabilities(elicitation=ElicitationCapability(form=FormElicitationCapability())),
    Capability.URL: ClientCapabilities(elicitation=ElicitationCapability(url=UrlElicitationCapability())),
    Capability.SAMPLING: ClientCapabilities(sampling=SamplingCapability()),
    Capability.SAMPLING_TOOLS: ClientCapabilities(
        sampling=SamplingCapability(tools=SamplingToolsCapability())
    ),
    Capability.ROOTS: ClientCapabilities(roots=RootsCapability()),
}


def declared(request: Request) -> tuple[Capability, ...]:
    """Return what the client of a request can be asked."""
    given = request.session.client_capabilities or ClientCapabilities()
    elicitation, sampling = given.elicitation, given.sampling
    can = {
        # an empty declaration is older than the two modes, and means forms
        Capability.FORM: elicitation is not None
        and (elicitation.form is not None or elicitation.url is None),
        Capability.URL: elicitation is not None and elicitation.url is not None,
        Capability.SAMPLING: sampling is not None,
        Capability.SAMPLING_TOOLS: sampling is not None and sampling.tools is not None,
        Capability.ROOTS: given.roots is not None,
    }
    return tuple(capability for capability, is_declared in can.items() if is_declared)


def required(capability: Capability) -> Wire:
    """Return the error data that names what a client would have to declare."""
    needed = _REQUIRED[capability].model_dump(by_alias=True, mode="json", exclude_none=True)
    return {"requiredCapabilities": needed}
