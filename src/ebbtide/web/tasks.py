"""Run long work in a thread or a child process, and follow its progress."""

from __future__ import annotations

import logging
import secrets
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from ebbtide.errors import EbbtideError, mask
from ebbtide.web.audit import AuditLog
from ebbtide.web.subprocesses import Child

RUNNING, DONE, REFUSED, FAILED, CANCELLED = "running", "done", "refused", "failed", "cancelled"
KEPT = 20
"""How many tasks are remembered."""
_LINES, _LONGEST_LINE = 200, 2_000
_BUG = "Something went wrong that Ebbtide did not expect: this is a bug."
_FAILURE = {
    "state": FAILED,
    "problem": _BUG,
    "next_step": "The terminal of `ebbtide ui` shows where.",
}
_log = logging.getLogger("ebbtide.web")

Advance = Callable[[int, int | None], None]
"""Called with how much is done, and the total, if it is known."""
Work = Callable[[Advance], Any]
"""What a thread does: it returns the result, or raises why there is none."""


@dataclass(frozen=True)
class Command:
    """What a child process does, and how a line of its stdout changes the task."""

    words: tuple[str, ...]
    update: Callable[[Task, str], Task] = lambda task, line: task.with_lines(line)


@dataclass(frozen=True)
class Task:
    """The progress of a piece of work; a new value each time that something happens."""

    id: str
    kind: str
    title: str
    checkpoint: str
    """The key of the checkpoint that it is about."""
    target: str
    """The location of the checkpoint, for the audit log."""
    started: datetime
    again: str = ""
    """The form to look at again if it is refused."""
    label: str = ""
    """The title of the checkpoint."""
    state: str = RUNNING
    ended: datetime | None = None
    done: int = 0
    total: int | None = None
    lines: tuple[str, ...] = ()
    result: Any = None
    problem: str = ""
    next_step: str = ""
    can_cancel: bool = False
    cancelling: bool = False
    steps: int = 0
    """How often something has happened."""
    ending: str = ""
    """The state in which the child process has announced to end."""

    @property
    def running(self) -> bool:
        """Whether it is still running."""
        return self.state == RUNNING

    def with_lines(self, *lines: str) -> Task:
        """Add lines that are shown as they are."""
        cut = (line[:_LONGEST_LINE] for line in lines)
        return replace(self, lines=(*self.lines, *cut)[-_LINES:])

    @property
    def name(self) -> str:
        """The name of the checkpoint that it is about."""
        return self.label or self.target.rstrip("/").rpartition("/")[2]


@dataclass
class _Job:
    """A task and what runs it."""

    task: Task
    thread: threading.Thread = field(init=False)
    child: Child | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def update(self, change: Callable[[Task], Task]) -> None:
        with self.lock:
            self.task = replace(change(self.task), steps=self.task.steps + 1)

    def change(self, **changes: Any) -> None:
        self.update(lambda task: replace(task, **changes))


class Tasks:
    """The tasks that are running, and the last ones that have ended.

    >>> import tempfile, time
    >>> from pathlib import Path
    >>> tasks = Tasks(AuditLog(Path(tempfile.mkdtemp()) / "audit.jsonl"))
    >>> task = tasks.start("sum", "Add up", "key", lambda advance: 1 + 1)
    >>> tasks.wait(task.id).result
    2
    """

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()
        self._closing = ExitStack()
        self._closed = False

    def start(
        self,
        kind: str,
        title: str,
        checkpoint_key: str,
        work: Work | Command,
        *,
        target: str = "",
        again: str = "",
        label: str = "",
    ) -> Task:
        """Start work; its start and its outcome are written to the audit log."""
        task = Task(
            id=secrets.token_urlsafe(12),
            kind=kind,
            title=title,
            checkpoint=checkpoint_key,
            target=target or checkpoint_key,
            started=datetime.now(timezone.utc),
            again=again,
            label=label,
            can_cancel=isinstance(work, Command),
        )
        job = _Job(task)
        with self._lock:
            if self._closed:
                raise EbbtideError("The web UI is being closed.", "Type: ebbtide ui")
            running = [one for one in self.of(checkpoint_key) if one.running]
            if task.can_cancel and kind in [one.kind for one in running]:
                raise EbbtideError(
                    f"A {kind} of {task.name} is under way already.", "Wait for it, or cancel it."
                )
            self._audit.write(title, task.target, "started")
            if isinstance(work, Command):
                job.child = Child(work.words)
            # not a daemon: a rewind under way is finished before the server ends
            job.thread = threading.Thread(
                target=self._run, args=(job, work), name=f"task {kind}", daemon=False
            )
            job.thread.start()
            self._jobs[task.id] = job
            ended = [id_ for id_, one in self._jobs.items() if not one.task.running]
            for id_ in ended[: max(0, len(self._jobs) - KEPT)]:
                del self._jobs[id_]
        return task

    def find(self, task_id: str) -> Task | None:
        """The current value of a task; None if it is not remembered."""
        job = self._jobs.get(task_id)
        return job.task if job else None

    def of(self, checkpoint_key: str) -> list[Task]:
        """The tasks of a checkpoint, the newest first."""
        tasks = [job.task for job in list(self._jobs.values())]
        return [task for task in reversed(tasks) if task.checkpoint == checkpoint_key]

    def wait(self, task_id: str, seconds: float = 60) -> Task:
        """Wait until a task ends."""
        job = self._jobs[task_id]
        job.thread.join(seconds)
        return job.task

    def cancel(self, task_id: str) -> Task | None:
        """Interrupt a child process; it ends in order, and then the task does, too."""
        job = self._jobs.get(task_id)
        if job and job.child and job.task.running and not job.task.cancelling:
            job.change(cancelling=True)
            self._log_outcome(job.task, "cancel asked for")  # before its end is
            threading.Thread(target=job.child.interrupt, name="cancel", daemon=True).start()
        return self.find(task_id)

    def at_close(self, end: Callable[[], None]) -> None:
        """Call `end` when the server ends."""
        self._closing.callback(end)

    def close(self) -> None:
        """End child processes in order, and let threads finish what they change."""
        with self._lock:
            self._closed = True
        jobs = list(self._jobs.values())
        for job in jobs:
            self.cancel(job.task.id)
        self._closing.close()
        for job in jobs:
            job.thread.join()

    def _run(self, job: _Job, work: Work | Command) -> None:
        try:
            if isinstance(work, Command):
                ended = _follow_child(job, work)
            else:
                result = work(lambda done, total: job.change(done=done, total=total))
                ended = {"state": DONE, "result": result}
        except EbbtideError as error:
            ended = {"state": REFUSED, "problem": error.problem, "next_step": error.next_step}
        except Exception:
            what, trace = f"{job.task.title} of {job.task.target}", traceback.format_exc()
            _log.error("A bug in a task: %s\n%s", what, mask(trace))
            ended = _FAILURE
        problem = ended.get("problem") or job.task.problem
        self._log_outcome(job.task, f"{ended['state']}: {problem}" if problem else ended["state"])
        job.change(**ended, ended=datetime.now(timezone.utc))

    def _log_outcome(self, task: Task, outcome: str) -> None:
        # a full disk must not keep a task from ending: its start is in the log, and the core has
        # a log of its own
        with suppress(EbbtideError):
            self._audit.write(task.title, task.target, outcome)


def _follow_child(job: _Job, work: Command) -> dict[str, Any]:
    assert job.child is not None
    code, stderr = job.child.follow(lambda line: job.update(lambda task: work.update(task, line)))
    if code == 0:
        return {"state": DONE}
    if job.task.cancelling:
        return {"state": CANCELLED}
    if job.task.ending:
        return {"state": job.task.ending}
    _log.error("%s ended with code %s:\n%s", job.task.title, code, stderr)
    return _FAILURE
