"""Read the forms of the web UI, require their confirmation, and show why one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ebbtide.errors import EbbtideError, UsageError
from ebbtide.web.context import WebContext
from ebbtide.web.snapshots import Snapshot

Form = TypeVar("Form", bound="TextForm")


@dataclass(frozen=True)
class TextForm:
    """Fields of a form as they were sent; empty if not given or not ticked."""

    @classmethod
    def read(cls: type[Form], sent: Mapping[str, Any]) -> Form:
        """Take the fields of this form from all that was sent."""
        return cls(**{one.name: str(sent.get(one.name) or "").strip() for one in fields(cls)})

    @property
    def given(self) -> dict[str, str]:
        """The fields that are given, to be sent again."""
        return {name: value for name, value in vars(self).items() if value}


def parse_number(text: str) -> int | None:
    """A number in a form or an address; None if it is not one that a batch can have."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def require_confirmation(snapshot: Snapshot, sent: Mapping[str, Any]) -> None:
    """Refuse a form in which the checkpoint's name was not typed."""
    if str(sent.get("confirm", "")).strip() != snapshot.name:
        raise UsageError(
            "What you typed is not the checkpoint's name.", f"Type {snapshot.name} to confirm."
        )


def log_refusal(context: WebContext, action: str, snapshot: Snapshot, error: EbbtideError) -> None:
    """Write to the audit log that a form was refused."""
    context.audit.write(action, snapshot.location, f"refused: {error.problem}")


def render_form(
    context: WebContext,
    request: Request,
    template: str,
    refusal: EbbtideError | None,
    **values: Any,
) -> Response:
    """Render a form, and why it was refused, if it was."""
    status = status_of(refusal, request.method)
    return context.render(request, template, status, refusal=refusal, **values)


def status_of(error: EbbtideError | None, method: str) -> int:
    """The status of a page with an error; one that changes nothing has still done its work.

    >>> status_of(EbbtideError(""), "GET"), status_of(EbbtideError(""), "POST")
    (200, 409)
    >>> status_of(UsageError(""), "GET"), status_of(None, "POST")
    (422, 200)
    """
    if isinstance(error, UsageError):
        return 422
    return 409 if error is not None and method == "POST" else 200
