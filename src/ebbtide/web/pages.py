"""A request about one checkpoint: its form, its answer, and the task that it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ebbtide.credentials import take_credentials
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.web.context import WebContext, is_fragment
from ebbtide.web.snapshots import Snapshot
from ebbtide.web.tasks import Command, Task, Work

Form = TypeVar("Form", bound="TextForm")


@dataclass(frozen=True)
class TextForm:
    """Fields of a form as they were sent; empty if not given or not ticked.

    The form shows them again, so passwords and signatures are taken out of URLs.
    """

    @classmethod
    def read(cls: type[Form], sent: Mapping[str, Any]) -> Form:
        """Take the fields of this form from all that was sent."""
        texts = {one.name: str(sent.get(one.name) or "").strip() for one in fields(cls)}
        public = {name: map(take_credentials, text.split("\n")) for name, text in texts.items()}
        return cls(**{name: "\n".join(lines) for name, lines in public.items()})

    @property
    def given(self) -> dict[str, str]:
        """The fields that are given, to be sent again."""
        return {name: value for name, value in vars(self).items() if value}


@dataclass(frozen=True)
class CheckpointPage:
    """A request about one checkpoint."""

    context: WebContext
    request: Request
    snapshot: Snapshot
    sent: Mapping[str, Any]
    """The fields of the form, or of the address."""

    def render(self, template: str, refusal: EbbtideError | None = None, **values: Any) -> Response:
        """Show the checkpoint, and why the form was refused, if it was."""
        # a page that was only to be shown has done its work, even if it shows a refusal
        status = 409 if refusal and self.request.method == "POST" else 200
        status = 422 if isinstance(refusal, UsageError) else status
        values |= {"snapshot": self.snapshot, "refusal": refusal}
        return self.context.render(self.request, template, status, **values)

    def require_confirmation(self) -> None:
        """Refuse a form in which the checkpoint's name was not typed."""
        name = self.snapshot.name
        if str(self.sent.get("confirm", "")).strip() != name:
            raise UsageError(
                "What you typed is not the checkpoint's name.", f"Type {name} to confirm."
            )

    def log_refusal(self, action: str, error: EbbtideError) -> None:
        """Write to the audit log that the form was refused."""
        self.context.audit.write(action, self.snapshot.location, f"refused: {error.problem}")

    def start(self, kind: str, title: str, work: Work | Command, query: str = "") -> Response:
        """Start work on the checkpoint and show it; `query` fills in its form again."""
        key, target = self.snapshot.key, self.snapshot.location
        again = f"/checkpoints/{key}/{kind}?{query}"
        task = self.context.tasks.start(
            *(kind, title, key, work), target=target, again=again, label=self.snapshot.title
        )
        return show_started(self.context, self.request, task)


def checkpoint_route(
    context: WebContext,
    path: str,
    endpoint: Callable[[CheckpointPage], Response],
    method: str = "GET",
) -> Route:
    """A route below a checkpoint; its endpoint runs in a thread, because it reads a store."""

    def read(request: Request, sent: Mapping[str, Any]) -> Response:
        snapshot = context.snapshots.read(request.path_params["key"])
        return endpoint(CheckpointPage(context, request, snapshot, sent))

    async def answer(request: Request) -> Response:
        sent = await request.form() if method == "POST" else request.query_params
        return await run_in_threadpool(read, request, sent)

    return Route(f"/checkpoints/{{key}}{path}", answer, methods=[method])


def show_started(context: WebContext, request: Request, task: Task) -> Response:
    """Show a task that a form has started or cancelled: to htmx in place, else on its own page."""
    if is_fragment(request):
        return context.render(request, "task.html", task=task)
    return RedirectResponse(f"/tasks/{task.id}", 303)


def parse_number(text: str) -> int | None:
    """A number in a form or an address; None if it is not one that a batch can have."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
