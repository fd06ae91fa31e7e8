"""Workers import pyspark from its package, and the zip file of another pyspark stays."""

from __future__ import annotations

from pathlib import Path

from ebbtide.runtime.worker_daemon import without_copies


def _install(folder: Path) -> str:
    """A pyspark as pip installs it; returns the path of its zip file."""
    package = folder / "pyspark"
    (package / "python" / "lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    return str(package / "python" / "lib" / "pyspark.zip")


def test_the_copy_of_an_installed_package_goes(tmp_path: Path) -> None:
    copy = _install(tmp_path)
    py4j = copy.replace("pyspark.zip", "py4j-0.10.9.9-src.zip")
    assert without_copies([copy, py4j, str(tmp_path)]) == [py4j, str(tmp_path)]


def test_the_pyspark_of_another_place_stays(tmp_path: Path) -> None:
    copy = _install(tmp_path / "other")
    assert without_copies([copy, str(tmp_path)]) == [copy, str(tmp_path)]
    download = str(tmp_path / "spark-4.2" / "python" / "lib" / "pyspark.zip")
    assert without_copies([download, str(tmp_path)]) == [download, str(tmp_path)]
