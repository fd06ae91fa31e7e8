"""A listing of many names answers for one of them without a set of all."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.checkpoint import read_checkpoint
from ebbtide.storage import open_folder
from ebbtide.storage.folder import Listing
from tests.trees import Shape, make


@given(names=st.sets(st.text(max_size=3)), name=st.text(max_size=3))
def test_a_listing_has_its_names_and_no_others(names: set[str], name: str) -> None:
    listing = Listing(tuple(sorted(names)))
    assert listing.has(name) == (name in names)
    assert all(map(listing.has, names))


def test_only_stores_with_all_names_alike_share_them(tmp_path: Path) -> None:
    make(tmp_path, Shape("hdfs", partitions=3))
    odd = tmp_path / "state/0/0"
    (odd / "3.delta").rename(odd / "3.changelog")  # as many names, the same first and last
    tree = open_folder(str(tmp_path)).scan()
    other, first, last = (tree[f"state/0/{n}"].names for n in range(3))
    assert first is last
    assert {*first} ^ {*other} == {"3.delta", "3.changelog"}
    stores = read_checkpoint(str(tmp_path)).operators[0].distinct_stores
    assert {store.partition for store in stores} == {0, 1}


def test_links_and_folders_among_files_are_told_apart(tmp_path: Path) -> None:
    make(tmp_path, Shape("hdfs"))
    store = tmp_path / "state/0/1"
    (store / "9.delta").symlink_to(store / "1.delta")
    (store / "8.delta").symlink_to(tmp_path.parent / "elsewhere.delta")
    tree = open_folder(str(tmp_path)).scan()
    assert "9.delta" in tree["state/0/1"].names
    assert "8.delta" not in tree["state/0/1"].names
