"""A random walk over real checkpoints: after each step, what is there equals the model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, assume, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from pyspark.sql import SparkSession

import ebbtide
from ebbtide.checkpoint import Backup
from ebbtide.checkpoint.verification import verify_checkpoint
from ebbtide.config import Settings
from ebbtide.errors import CheckpointError
from ebbtide.rewind import backups, sinks
from ebbtide.storage import open_folder
from tests.walk.driver import KILLS, Driver
from tests.walk.model import SKIPPING, Case, Entry, Saved, Stream, as_text, case_of
from tests.walk.states import check_state

MOST_STREAMS, MOST_BATCHES = 3, 40
TARGETS = ("to_batch", "shift_by", "to_datetime", "to_earliest", "to_latest_good")
TABLES = ("delta", "txn")
NO_UNDO = (
    "belongs to another timeline",
    "others have changed the table",
    "has gone back with a later change",
    "changes nothing",
)
"""Why a backup that is not the newest may not come back."""
place = st.integers(0, 1 << 16)
"""Which of several; counted round."""


STEPS: list[st.SearchStrategy[tuple[str, dict[str, Any]]]] = []
WHEN: dict[str, Callable[[Any], Any]] = {}
Method = TypeVar("Method", bound=Callable[..., None])


def may(
    when: Callable[[Any], Any], weight: int, **arguments: st.SearchStrategy[Any]
) -> Callable[[Method], Method]:
    """A step of a walk, how often it is chosen, and when it can be made.

    Not rules of Hypothesis: it leaves many of those out of a walk, which then leads nowhere.
    """

    def register(method: Method) -> Method:
        name = st.just(method.__name__)
        STEPS.extend([st.tuples(name, st.fixed_dictionaries(arguments))] * weight)
        WHEN[method.__name__] = when
        return method

    return register


class Walk(RuleBasedStateMachine):
    """One walk; `spark` and `case` are set by `walk`."""

    spark: SparkSession
    case: Case

    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()
        folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="ebbtide-walk-"))
        self.driver = Driver(self.spark, Path(folder), self.case)
        self.settings = Settings(home=Path(folder) / "home")
        self.now = Stream("checkpoint-0", "sink-0")
        self.streams = [self.now]
        self.factor, self.made, self.changed = 1, 0, True
        self._open.enter_context(self.driver.configured())
        patch = self._open.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("ebbtide.runtime.session.build_session", lambda *_a, **_k: self.spark)
        patch.setattr("ebbtide.runtime.session.close_session", lambda _spark: None)

    @rule(chosen=st.deferred(lambda: st.one_of(*STEPS)))
    def step(self, chosen: tuple[str, dict[str, Any]]) -> None:
        """One step, unless it cannot be made here; then all is compared."""
        name, arguments = chosen
        if WHEN[name](self):
            getattr(self, name)(**arguments)
            self.the_sink_holds_what_it_should()
            self.inspect_says_what_is_there()
            self.state_is_what_it_should_be()

    def teardown(self) -> None:
        """Let go of the folder and the settings."""
        self._open.close()

    @initialize(chance=st.integers(0, 1 << 32))
    def begin(self, chance: int) -> None:
        """Hypothesis tries the dullest walk first, which is not worth its time."""
        assume(chance)
        self.run(1 + chance % 3, eager=True)

    @property
    def path(self) -> str:
        return str(self.driver.checkpoint(self.now.name))

    @property
    def has_room(self) -> bool:
        return len(self.now.line.batches) < MOST_BATCHES

    @property
    def has_run(self) -> bool:
        return len(self.now.line.batches) > self.now.first

    @property
    def flags(self) -> dict[str, Any]:
        """Those that name the sink for a rewind."""
        out = str(self.driver.out(self.now.sink))
        if self.case.sink == "files":
            return {"sink_files": out}
        return {"sink_table": out} if self.case.sink in TABLES else {"sink": "none"}

    # steps of the query

    @may(lambda self: self.has_room, 4, units=st.integers(1, 3), eager=st.booleans())
    def run(self, units: int, eager: bool) -> None:
        """Read some more; `eager` leaves a snapshot of about every other version."""
        self._run(units, None, eager=eager)

    @may(
        lambda self: self.has_room,
        2,
        units=st.integers(1, 2),
        kill=st.sampled_from(KILLS),
        eager=st.booleans(),
    )
    def die(self, units: int, kill: str, eager: bool) -> None:
        """The same, and the last batch is not committed."""
        # such a sink skips the batch, after which the state's ids are not known: Spark's own limit
        if kill == "commit" and self.case.sink in SKIPPING and self.case.store == "v2":
            kill = "source"
        self._run(units, kill, eager=eager)

    def _run(self, units: int, kill: str | None, *, eager: bool) -> None:
        wrote = self.driver.run(self.now, self.factor, units, kill, eager=eager)
        logs = self.driver.logs(self.now.name)
        was = self.now.line
        line = was.run(self.case, self.factor, logs, wrote)
        if self.case.source == "files" and line.batches[-1].committed:
            assert line.batches[-1].end == self.driver.fed, "not all of the input was read"
        self.now.line = line
        self._keep_ledger(was.committed, wrote)

    def _keep_ledger(self, first: int, last: int) -> None:
        """What foreachBatch was given: the entries that were added are those of these batches."""
        entries = self.now.line.entries[len(self.now.line.entries) - (last - first + 1) :]
        if self.case.sink == "ledger":
            for number, entry in zip(range(first, last + 1), entries, strict=True):
                self.now.ledger[number] = tuple(sorted(entry.rows))

    @may(lambda _self: True, 1)
    def change_code(self) -> None:
        """A new version of the query, which can go on from the state of the one before."""
        self.factor = self.factor % 7 + 1

    # steps of the user

    @may(
        lambda self: self.has_run,
        4,
        to=st.sampled_from(TARGETS),
        pick=place,
        replan=st.booleans(),
        again=st.booleans(),
        new_code=st.booleans(),
    )
    def rewind(self, to: str, pick: int, replan: bool, again: bool, new_code: bool) -> None:
        """To a batch, with the sink or (`again`) without it."""
        line, case = self.now.line, self.case
        to, batch, flag = self._choose(to, pick)
        remedy = {"sink": "append-again" if again else "restore"} if case.sink in TABLES else {}
        asked: dict[str, Any] = {to: flag, "replan": replan, **self.flags, **remedy}
        restores = case.sink == "files" or (case.sink in TABLES and not again)
        after = line.rewind(
            batch, replan=replan, restores=restores, new_id=case.sink == "delta" and again
        )
        if said := _refusal(lambda: self._apply(batch, asked)):
            self._expect_refusal(said, line, after, batch, restores=restores)
            return
        assert not (restores and line.foreign_since(batch)), "it took out rows of another writer"
        self.now.backups.append(Saved(line, after.entries, batch))
        self.now.line = after
        self.factor += new_code
        self.changed = True

    def _apply(self, batch: int, asked: dict[str, Any]) -> None:
        plan = ebbtide.plan_rewind(self.path, assume_stopped=True, settings=self.settings, **asked)
        assert plan.first_batch == batch, f"batch {plan.first_batch}, not {batch}: {asked}"
        ebbtide.apply_rewind(plan, assume_stopped=True, settings=self.settings)

    def _choose(self, target: str, pick: int) -> tuple[str, int, Any]:
        """A target that means a batch of ours, that batch, and what is asked for."""
        line, first = self.now.line, self.now.first
        last = len(line.batches) - 1
        batch = first + pick % max(1, last + 1 - first)
        if target == "shift_by" and batch < line.committed:
            return target, batch, batch - line.committed
        if target == "to_datetime" and first == 0:
            times = self.driver.planned_at(self.now.name)
            batch = min(n for n, at in times.items() if at >= times[batch])
            return target, batch, datetime.fromtimestamp(times[batch] / 1000, timezone.utc)
        if target == "to_earliest" and first == 0:
            return target, 0, True
        if target == "to_latest_good" and last >= first:
            return target, last, True
        return "to_batch", batch, batch

    def _expect_refusal(
        self, said: str, line: Any, after: Any, batch: int, *, restores: bool
    ) -> None:
        if "nothing would leave it" in said:
            assert (after.batches, after.entries) == (line.batches, line.entries), said
        elif "others have changed the table since" in said:
            assert restores, said
            assert line.foreign_since(batch), said
        elif batch >= len(line.batches):  # a fork that has not planned its first batch
            assert "has not been planned yet" in said or "no batch" in said, said
        else:
            raise AssertionError(said)

    @may(lambda self: self.now.backups, 3)
    def undo(self) -> None:
        """Go back to before the last rewind; twice is as never."""
        saved, now = self.now.backups[-1], self.now.line
        if said := _refusal(lambda: ebbtide.undo_rewind(self.path, assume_stopped=True)):
            assert self.case.sink in TABLES, said
            assert saved.is_blocked(now), said
            assert "others have changed the table" in said, said
            return
        assert self.case.sink not in TABLES or not saved.is_blocked(now)
        self.now.line = saved.line
        self.now.backups[-1] = Saved(now, saved.line.entries, saved.first)
        self.changed = True

    @may(lambda self: len(self.now.backups) > 1, 2, pick=place)
    def undo_earlier(self, pick: int) -> None:
        """Go back to a backup that is not the newest, if it is of the same timeline."""
        number = pick % (len(self.now.backups) - 1)
        saved, now = self.now.backups[number], self.now.line
        backup = Backup.read_all(open_folder(self.path))[number].id
        if said := _refusal(
            lambda: ebbtide.undo_rewind(self.path, backup=backup, assume_stopped=True)
        ):
            assert any(reason in said for reason in NO_UNDO), said
            return
        below = saved.line.batches[: saved.first]
        expect("the batches below", now.batches[: saved.first], below)
        assert self.case.sink not in TABLES or not saved.is_blocked(now)
        self.now.line = saved.line
        del self.now.backups[number]
        self.now.backups.append(Saved(now, saved.line.entries, saved.first))
        self.changed = True

    @may(
        lambda self: self.has_run and len(self.streams) < MOST_STREAMS,
        1,
        pick=place,
        replan=st.booleans(),
        stay=st.booleans(),
    )
    def fork(self, pick: int, replan: bool, stay: bool) -> None:
        """A second checkpoint with a sink of its own; walk on with it, or with this one."""
        line, first = self.now.line, self.now.first
        last = len(line.batches) - (not line.batches[-1].committed)
        batch = first + pick % max(1, last + 1 - first)
        self.made += 1
        new = Stream(f"checkpoint-{self.made}", f"sink-{self.made}", first=batch)
        if batch >= len(line.batches):
            replan = True
        kept = line.batches[:batch]
        plan = () if replan else (line.batches[batch].as_plan(),)
        new.line = replace(line, batches=(*kept, *plan), entries=(), seen=batch - 1, rest={})
        files = self.driver.out(new.sink) if self.case.sink == "files" else None
        place = self.driver.checkpoint(new.name)
        ebbtide.fork(self.path, place, batch, replan=replan, sink_files=files)
        self._switch_to(new, stay=stay)

    @may(lambda self: self.has_run, 1, stay=st.booleans())
    def move(self, stay: bool) -> None:
        """Copy the checkpoint elsewhere; the copy writes to the same sink, if it is walked on."""
        self.made += 1
        new = replace(self.now, name=f"checkpoint-{self.made}")
        new.backups, new.ledger = list(self.now.backups), dict(self.now.ledger)
        shutil.copytree(self.path, self.driver.checkpoint(new.name))
        if not stay:
            if self.case.sink != "ledger":
                self._name_sink(new)
            self.streams.remove(self.now)
            self._switch_to(new, stay=False)

    def _name_sink(self, new: Stream) -> None:
        """An undo would change a sink that may be that of the original, until it is named."""
        copy, out = str(self.driver.checkpoint(new.name)), str(self.driver.out(new.sink))
        if new.backups:
            with pytest.raises(CheckpointError, match="would also change"):
                ebbtide.undo_rewind(copy, assume_stopped=True)
        tables, files = ([], out) if self.case.sink == "files" else ([out], None)
        there = ebbtide.open_checkpoint(copy)
        if said := _refusal(lambda: sinks.name_sinks(there, tables, files)):
            assert "shows no sign" in said, said
            assert not new.line.entries or self.case.sink == "txn", said
            backups.prune_backups(copy, keep=0, assume_stopped=True)
            new.backups = []

    def _switch_to(self, stream: Stream, *, stay: bool) -> None:
        self.streams.append(stream)
        if not stay:
            self.now = stream
        self.changed = True

    @may(lambda self: len(self.streams) > 1, 1, pick=place)
    def switch(self, pick: int) -> None:
        """Walk on with another checkpoint."""
        self.now = self.streams[pick % len(self.streams)]
        self.changed = True

    @may(lambda self: self.now.backups, 1, keep=st.integers(0, 2))
    def prune(self, keep: int) -> None:
        """Delete all backups but the newest."""
        pruned = backups.prune_backups(self.path, keep=keep, assume_stopped=True)
        assert len(pruned) == max(0, len(self.now.backups) - keep)
        self.now.backups = self.now.backups[len(pruned) :]
        if pruned:
            self.now.line = replace(self.now.line, rest={})

    @may(lambda self: self.now.line.may_replay, 2)
    def replay(self) -> None:
        """Run again what was rewound, with its boundaries."""
        line, stream, factor = self.now.line, self.now, self.factor
        after = line.replay(self.case, factor)
        result = ebbtide.replay(
            lambda _spark: self.driver.write(stream, factor),
            checkpoint=self.path,
            settings=self.settings,
            assume_stopped=True,
        )
        assert (result.first_batch, result.last_batch) == (min(line.rest), max(line.rest))
        self.now.line = after
        self._keep_ledger(line.committed, max(line.rest))

    # others

    @may(lambda self: self.case.sink in TABLES and self.now.line.entries, 1)
    def write_as_other(self) -> None:
        """Another writer adds a row to the table."""
        text = as_text({"other": len(self.now.line.entries)})
        self.driver.write_as_other(self.now, text)
        entry = Entry((text,), foreign=True)
        self.now.line = replace(self.now.line, entries=(*self.now.line.entries, entry))

    @may(lambda self: self.case.sink in TABLES and self.now.line.entries, 1)
    def optimize(self) -> None:
        """Somebody compacts the table."""
        self.driver.optimize(self.now)

    # what must be there

    def the_sink_holds_what_it_should(self) -> None:
        """Every row once, or as often as was asked for."""
        if self.case.sink == "ledger":
            found = {n: tuple(rows) for n, rows in self.driver.ledger(self.now).items()}
            expect("what foreachBatch was given", found, self.now.ledger)
        else:
            expect("the rows in the sink", self.driver.rows(self.now), self.now.line.rows)

    def inspect_says_what_is_there(self) -> None:
        """Batches, commits, watermarks; each can run again, and its files are whole."""
        line, first = self.now.line, self.now.first
        if not line.batches:
            return
        there = ebbtide.open_checkpoint(self.path)
        seen = {b.id: (b.offsets.watermark_ms, b.committed) for b in there.logs.batches}
        known = {n: (b.watermark, b.committed) for n, b in enumerate(line.batches)}
        # a fork begins with a few log entries of its original
        expect(
            "its batches", seen, {n: one for n, one in known.items() if n >= min(seen, default=0)}
        )
        expect("the batches of a fork", set(range(first, len(known))) - set(seen), set())
        logs = {n: line.batches[n].logged for n in seen}
        expect("the logs", self.driver.logs(self.now.name), logs)
        latest = there.logs.latest_committed
        expect("the last commit", latest.id if latest else -1, line.committed - 1)
        mine = range(first, len(known))
        expect("whether each can run again", {there.restorable[n] for n in mine} - {None}, set())
        broken = [proof for proof in verify_checkpoint(self.path).broken if proof.batch >= first]
        expect("what verify finds", broken, [])
        made = [backup.action for backup in Backup.read_all(there.folder)]
        expect("the number of backups", len(made), len(self.now.backups))

    def state_is_what_it_should_be(self) -> None:
        """By Spark's own reader, after a change of the checkpoint."""
        line = self.now.line
        if not (self.changed and self.case.query.stateful and line.committed):
            return
        self.changed = False
        if line.batches[line.committed - 1].state is None:
            return
        there = ebbtide.open_checkpoint(self.path)
        if line.committed > self.now.first or there.why_not(line.committed) is None:
            watermark = line.batches[line.committed - 1].watermark
            check_state(self.case, line.state, self.driver.state(there), watermark)


def expect(what: str, found: object, expected: object) -> None:
    """Compare with the model."""
    assert found == expected, f"{what}: {found}, but the model has {expected}"


def _refusal(change: Callable[[], object]) -> str:
    """What a change of the checkpoint is refused with; empty if it is made."""
    try:
        change()
    except CheckpointError as error:
        return str(error)
    return ""


def play(spark: SparkSession, case: Case, *steps: tuple[str, dict[str, Any]]) -> None:
    """A walk whose steps are given: the name of each, and its arguments."""
    machine = type("GivenWalk", (Walk,), {"spark": spark, "case": case})()
    try:
        for step in steps:
            machine.step(step)
    finally:
        machine.teardown()


def walk(spark: SparkSession, number: int, *, steps: int, shrink: bool = True) -> None:
    """The walk of a seed; raises what is wrong, with the fewest steps that show it."""
    machine = type("SeededWalk", (Walk,), {"spark": spark, "case": case_of(number)})
    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]
    run_state_machine_as_test(
        seed(number)(machine),
        settings=settings(
            max_examples=1,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
