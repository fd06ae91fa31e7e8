"""Run work that takes a while in a thread or a child process, and know how far it is."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from ebbtide.errors import EbbtideError
from ebbtide.web.audit import AuditLog
from ebbtide.web.subprocesses import Child

RUNNING, DONE, REFUSED, FAILED, CANCELLED = "running", "done", "refused", "failed", "cancelled"
KEPT = 20
"""How many tasks are remembered."""
_LINES, _LONGEST_LINE = 200, 2_000
_BUG = "Something went wrong that Ebbtide did not expect: this is a bug."
_log = logging.getLogger("ebbtide.web")

Advance = Callable[[int, int | None], None]
"""Called with how much is done, and how much there is, if that is known."""
Say = Callable[[str], None]
Work = Callable[[Advance, Say], Any]
"""What a thread does: it returns the result, or raises why not."""


@dataclass(frozen=True)
class Command:
    """What a child process does, and how a line of its stdout changes the task."""

    words: tuple[str, ...]
    update: Callable[[Task, str], Task] = lambda task, line: task.with_lines(line)


@dataclass(frozen=True)
class Task:
    """How a piece of work stands; another value each time that something happens."""

    id: str
    kind: str
    title: str
    checkpoint: str
    """The key of the checkpoint that it is about."""
    target: str
    """What the audit log calls it: the checkpoint's place."""
    started: datetime
    again: str = ""
    """Where to look again if it is refused."""
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
    """How often something has happened: tells one value from the next."""
    ending: str = ""
    """The state in which a child process says that it will end."""

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self.state == RUNNING

    def with_lines(self, *lines: str) -> Task:
        """With lines that are shown as they are."""
        cut = (line[:_LONGEST_LINE] for line in lines)
        return replace(self, lines=(*self.lines, *cut)[-_LINES:])

    @property
    def name(self) -> str:
        """The name of the checkpoint that it is about."""
        return self.target.rstrip("/").rpartition("/")[2]

    def is_beside(self, other: _Job) -> bool:
        """Whether another of its kind is just being done to the same checkpoint."""
        same = (other.task.kind, other.task.checkpoint) == (self.kind, self.checkpoint)
        return same and other.task.running


@dataclass
class _Job:
    """A task and what runs it."""

    task: Task
    thread: threading.Thread | None = None
    child: Child | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def update(self, change: Callable[[Task], Task]) -> Task:
        with self.lock:
            self.task = replace(change(self.task), steps=self.task.steps + 1)
            return self.task

    def change(self, **changes: Any) -> Task:
        return self.update(lambda task: replace(task, **changes))

    def say(self, line: str) -> None:
        self.update(lambda task: task.with_lines(line))

    def advance(self, done: int, total: int | None) -> None:
        self.change(done=done, total=total)


class Tasks:
    """All that is under way, and the last that were.

    >>> import tempfile, time
    >>> from pathlib import Path
    >>> tasks = Tasks(AuditLog(Path(tempfile.mkdtemp()) / "audit.jsonl"))
    >>> task = tasks.start("sum", "Add up", "key", lambda advance, say: 1 + 1)
    >>> tasks.wait(task.id).result
    2
    """

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()
        self._closing: list[Callable[[], None]] = []
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
    ) -> Task:
        """Start work; `find` tells how it ends, and both are written to the audit log."""
        task = Task(
            id=secrets.token_urlsafe(12),
            kind=kind,
            title=title,
            checkpoint=checkpoint_key,
            target=target or checkpoint_key,
            started=datetime.now(timezone.utc),
            again=again,
            can_cancel=isinstance(work, Command),
        )
        job = _Job(task)
        with self._lock:
            if self._closed:
                raise EbbtideError("The web UI is being closed.", "Type: ebbtide ui")
            if isinstance(work, Command) and any(map(task.is_beside, self._jobs.values())):
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
            self._forget()
        return task

    def find(self, task_id: str) -> Task | None:
        """How a task stands; None if nobody remembers it."""
        job = self._jobs.get(task_id)
        return job.task if job else None

    def of(self, checkpoint_key: str) -> list[Task]:
        """The tasks of a checkpoint, the newest first."""
        tasks = [job.task for job in list(self._jobs.values())]
        return [task for task in reversed(tasks) if task.checkpoint == checkpoint_key]

    def wait(self, task_id: str, seconds: float = 60) -> Task:
        """How a task ended."""
        job = self._jobs[task_id]
        if job.thread is not None:
            job.thread.join(seconds)
        return job.task

    def cancel(self, task_id: str) -> Task | None:
        """Interrupt a child process; it ends in order, and the task tells when it has."""
        job = self._jobs.get(task_id)
        if job is None or job.child is None or not job.task.running:
            return job.task if job else None
        again = job.task.cancelling
        job.change(cancelling=True)
        if not again:
            threading.Thread(target=job.child.interrupt, name="cancel", daemon=True).start()
            self._note(job.task, "cancel asked for")
        return job.task

    def at_close(self, end: Callable[[], None]) -> None:
        """Have something ended with the server."""
        self._closing.append(end)

    def close(self) -> None:
        """End children in order, let threads finish what they change, then all else."""
        with self._lock:
            self._closed = True
        jobs = list(self._jobs.values())
        for job in jobs:
            self.cancel(job.task.id)
        for end in self._closing:
            end()
        for job in jobs:
            if job.thread is not None:
                job.thread.join()

    def _forget(self) -> None:
        over = [id_ for id_, job in self._jobs.items() if not job.task.running]
        for id_ in over[: max(0, len(self._jobs) - KEPT)]:
            del self._jobs[id_]

    def _run(self, job: _Job, work: Work | Command) -> None:
        try:
            if isinstance(work, Command):
                ended = _run_child(job, work)
            else:
                ended = {"state": DONE, "result": work(job.advance, job.say)}
        except EbbtideError as error:
            ended = {"state": REFUSED, "problem": error.problem, "next_step": error.next_step}
        except Exception:
            _log.exception("A bug in a task: %s of %s", job.task.title, job.task.target)
            ended = {"state": FAILED, **_describe_bug()}
        problem = ended.get("problem") or job.task.problem
        self._note(job.task, f"{ended['state']}: {problem}" if problem else ended["state"])
        job.change(**ended, ended=datetime.now(timezone.utc))

    def _note(self, task: Task, outcome: str) -> None:
        """Log what came of a task: a full disk must not keep it from ending."""
        with suppress(EbbtideError):  # its start is in the log, and the core has one of its own
            self._audit.write(task.title, task.target, outcome)


def _describe_bug() -> dict[str, str]:
    return {"problem": _BUG, "next_step": "The terminal of `ebbtide ui` shows where."}


def _run_child(job: _Job, work: Command) -> dict[str, Any]:
    assert job.child is not None

    def take(line: str) -> None:
        job.update(lambda task: work.update(task, line))

    code, stderr = job.child.follow(take)
    if code == 0:
        return {"state": DONE}
    if job.task.cancelling:
        return {"state": CANCELLED}
    if job.task.ending:
        return {"state": job.task.ending}
    _log.error("%s ended with code %s:\n%s", job.task.title, code, stderr)
    return {"state": FAILED, **_describe_bug()}
