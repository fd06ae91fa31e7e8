"""A version of Spark in, its checkpoints written, rewound and started again out, and what failed.

Steps: **1** the version writes each checkpoint, wrong from a batch B on, and beside it the same
right all along; **2** we read, verify, rewind to B, undo that, rewind once more, and break off the
rewind of a copy;
**3** the version starts again: it refuses what was broken off, and runs what was rewound, with new
input; and once more, as only a new start reads the new state back; **4** what it wrote is as if it
had been right all along.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ebbtide.checkpoint.verification import GOOD, verify_checkpoint
from ebbtide.errors import EbbtideError
from ebbtide.rewind import RewindPlan, RewindRequest, apply_rewind, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from tests import cells
from tests.compat.kept import FIXTURES, pack
from tests.compat.session import Result, Run
from tests.power import PowerCutError
from tests.trees import snapshot

STREAMING = "spark.sql.streaming."
FILES, MORE_FILES, ALL_FILES = 8, 9, 10
"""How many files there are until the rewind, until the first start after it, and in all."""

Session = Callable[[list[Run]], list[Result]]
"""Runs in one session of the version that is played."""


@dataclass(frozen=True)
class Cell:
    """A store and a query, perhaps with a setting that makes Spark write another format."""

    store: str
    query: str
    since: str = "3.5"
    suffix: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)
    before: int = cells.WRONG_FROM
    """How many files its first run reads; some files are only written by a run's first batch."""

    def __str__(self) -> str:
        return f"{self.store}-{self.query}{self.suffix}"

    def runs_on(self, version: str) -> bool:
        """Whether that Spark has it."""
        return version >= self.since and cells.allowed(self.store, self.query, version)


CELLS = (
    Cell("hdfs", "windowed"),
    Cell("rocksdb", "join"),
    Cell("changelog", "aggregation"),
    Cell("v2", "aggregation"),
    Cell("v2", "join"),
    Cell("rocksdb", "tws"),
    Cell("rocksdb", "join", "4.1", "-format-3", {f"{STREAMING}join.stateFormatVersion": "3"}),
    # B is not the second run's first batch: 4.2 cannot repeat a batch after one of the first run
    Cell(
        "v2",
        "aggregation",
        "4.2",
        "-offsets-v2",
        {f"{STREAMING}offsetLog.formatVersion": "2"},
        before=cells.WRONG_FROM - 1,
    ),
)


@dataclass(eq=False)
class Play:
    """One cell on one version: where its files lie, and what its runs did."""

    cell: Cell
    home: Path
    results: dict[str, Result] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        """What is rewound."""
        return self.home / "checkpoint"

    @property
    def broken_off(self) -> Path:
        """The copy whose rewind is broken off."""
        return self.home / "broken-off"

    @property
    def first_batch(self) -> int:
        """The first batch that went wrong."""
        return self.results["wrong"].batches[cells.WRONG_FROM - self.cell.before]

    def first_runs(self) -> dict[str, Run]:
        """Step 1."""
        before = self._run("input", self.checkpoint, (0, self.cell.before), snapshots=True)
        return {
            "before": before,
            "wrong": replace(before, files=(self.cell.before, FILES), wrong=True),
            "right": self._run("right-input", self.home / "right", (0, ALL_FILES)),
        }

    def rewind(self) -> None:
        """Step 2."""
        report = verify_checkpoint(str(self.checkpoint))
        assert not report.unknown, f"unknown files: {report.unknown}"
        bad = [proof for proof in report.proofs if proof.verdict != GOOD]
        assert not bad, f"cannot run again: {bad[0]}"
        shutil.copytree(self.checkpoint, self.broken_off)
        before = snapshot(self.checkpoint)
        apply_rewind(self._plan(self.checkpoint), assume_stopped=True)
        undo_rewind(str(self.checkpoint), assume_stopped=True)
        assert snapshot(self.checkpoint) == before, "the undo did not bring every file back"
        apply_rewind(self._plan(self.checkpoint), assume_stopped=True)
        self._break_off()

    def _plan(self, checkpoint: Path) -> RewindPlan:
        target = ToBatch(self.first_batch)
        return plan_rewind(
            RewindRequest(str(checkpoint), target, assume_stopped=True, remedy="none")
        )

    def _break_off(self) -> None:
        plan = self._plan(self.broken_off)

        def kill(_done: int, _all: int) -> None:
            if not (self.broken_off / plan.removals[0]).exists():
                raise PowerCutError

        try:
            apply_rewind(plan, assume_stopped=True, on_file=kill)
        except PowerCutError:
            return
        raise AssertionError("the rewind of the copy was not broken off")

    def next_runs(self) -> dict[str, Run]:
        """Step 3, the first start."""
        again = self._run("input", self.checkpoint, (FILES, MORE_FILES))
        return {"refused": replace(again, checkpoint=str(self.broken_off)), "again": again}

    def last_runs(self) -> dict[str, Run]:
        """Step 3, the second start."""
        return {"more": self._run("input", self.checkpoint, (MORE_FILES, ALL_FILES))}

    def compare(self) -> None:
        """Step 4."""
        barrier = max((self.broken_off / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        line = barrier.read_text("utf-8").splitlines()[0]
        refused = self.results["refused"].error
        assert line in refused, f"the barrier {line!r} is not in the error {refused!r}"
        before, wrong, right, again, more = (
            self.results[name].rows for name in ("before", "wrong", "right", "again", "more")
        )
        rights = [row for _, row in right]
        assert any(row not in rights for _, row in wrong), "the wrong run was right"
        kept = [(batch, row) for batch, row in before + wrong if batch < self.first_batch]
        result = cells.QUERIES[self.cell.query].result
        found, wanted = result(kept + again + more), result(right)
        odd = [row for row in found if row not in wanted]
        assert found == wanted, f"{len(odd)} of {len(found)} rows are not right: {odd[:2]}"

    def _run(
        self, input_: str, checkpoint: Path, files: tuple[int, int], *, snapshots: bool = False
    ) -> Run:
        return Run(
            self.cell.store,
            self.cell.query,
            str(self.home / input_),
            str(checkpoint),
            files,
            snapshots=snapshots,
            conf=dict(self.cell.conf),
        )


def play_version(
    version: str, session: Session, home: Path, say: Callable[[str], None], *, keep: bool
) -> list[str]:
    """All cells of a version; returns what failed, one line each."""
    failed: list[str] = []
    plays = [Play(cell, home / str(cell)) for cell in CELLS if cell.runs_on(version)]

    @contextmanager
    def noted(play: Play) -> Iterator[None]:
        try:
            yield
        except (AssertionError, EbbtideError) as error:
            failed.append(f"{version} {play.cell}: {error}")
            if play in plays:
                plays.remove(play)

    def run(stage: Callable[[Play], dict[str, Run]]) -> None:
        wanted = [(play, name, run) for play in plays for name, run in stage(play).items()]
        found = session([run for _, _, run in wanted])
        for (play, name, _), result in zip(wanted, found, strict=True):
            play.results[name] = result
            if result.error and name != "refused":
                with noted(play):
                    raise AssertionError(f"the run {name!r} failed: {result.error}")

    # 1
    say(f"writing {len(plays)} checkpoints …")
    run(Play.first_runs)
    if keep:
        shutil.rmtree(FIXTURES / version, ignore_errors=True)
        for play in plays:
            pack(play.checkpoint, FIXTURES / version / f"{play.cell}.tar.gz")
    # 2
    say("reading, verifying, rewinding …")
    for play in [*plays]:
        with noted(play):
            play.rewind()
    # 3
    say("starting again …")
    run(Play.next_runs)
    run(Play.last_runs)
    # 4
    for play in [*plays]:
        with noted(play):
            play.compare()
    say(f"{len(plays)} as if right all along: {', '.join(str(play.cell) for play in plays)}")
    return failed
