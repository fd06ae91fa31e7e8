"""Whatever a checkpoint looks like: apply, then undo, and it is as it was, byte for byte."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.checkpoint import read_checkpoint
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from tests.inside import MEMORY
from tests.trees import JOIN_STORES, LAYOUTS, Shape, make, snapshot

SHAPES = st.builds(
    Shape,
    layout=st.sampled_from(LAYOUTS),
    batches=st.integers(1, 6),
    operators=st.integers(1, 2),
    partitions=st.integers(1, 2),
    stores=st.sampled_from([("default",), JOIN_STORES[:2]]),
    snapshot_every=st.integers(1, 4),
    first=st.sampled_from([0, 7]),
    hadoop_checksums=st.booleans(),
    spark_checksums=st.booleans(),
    operator_metadata=st.sampled_from([None, "v1", "v2"]),
)


@settings(max_examples=40)
@given(shape=SHAPES, back=st.integers(0, 5), replan=st.booleans(), uncommitted=st.booleans())
def test_apply_then_undo_restores_every_byte(
    shape: Shape, back: int, replan: bool, uncommitted: bool
) -> None:
    if uncommitted:
        shape = Shape(**{**vars(shape), "committed": shape.batches - 1})
    folder = Path(tempfile.mkdtemp(prefix="ebbtide-", dir=MEMORY))
    try:
        make(folder, shape)
        before = snapshot(folder)
        batch = max(shape.first, shape.first + shape.batches - 1 - back)
        plan = plan_rewind(
            RewindRequest(
                str(folder), ToBatch(batch), replan=replan, assume_stopped=True, remedy="none"
            )
        )
        assert snapshot(folder) == before
        if plan.refusals:
            return
        apply_rewind(plan, assume_stopped=True)
        after = snapshot(folder)
        assert {path: before[path] for path in after} == after
        assert set(before) - set(after) == set(plan.removals)
        left = read_checkpoint(str(folder))
        assert all(max(store.versions.all, default=0) <= batch for store in left.stores)
        assert [b.id for b in left.logs.batches if b.committed][-1:] in ([batch - 1], [])
        undo_rewind(str(folder), assume_stopped=True)
        assert snapshot(folder) == before
    finally:
        shutil.rmtree(folder)
