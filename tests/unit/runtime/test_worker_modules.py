"""What the workers of a cluster are sent, unpacked by a Python that can import none of it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from ebbtide.runtime.worker_modules import find_own_modules
from ebbtide.systems import find_pipeline

CLICKS = """
from ebbtide import Console, Kafka, Pipeline

def weigh(clicks):
    return double(clicks) + rules.BONUS

clicks = Pipeline(
    "clicks",
    source=Kafka("clicks", schema="at TIMESTAMP"),
    event_time="at",
    transform=lambda rows: weigh,
    sink=Console(),
)
"""
BESIDE = "import rules\nfrom helpers import double\n"
SEND = """
import sys
from pyspark import cloudpickle
from ebbtide.runtime.worker_modules import send_modules
from ebbtide.systems import find_pipeline

pipeline = find_pipeline(sys.argv[1])
send_modules(pipeline.transform)
sys.stdout.buffer.write(cloudpickle.dumps(pipeline.transform(None)))
"""
RECEIVE = """
import sys
from pyspark import cloudpickle

print(cloudpickle.loads(sys.stdin.buffer.read())(20))
"""


@pytest.mark.parametrize(
    ("reference", "imports"),
    [
        ("clicks:clicks", BESIDE),
        ("jobs/clicks.py:clicks", BESIDE),
        ("shop.clicks:clicks", "from shop import rules\nfrom shop.helpers import double\n"),
    ],
)
def test_the_modules_of_a_pipeline_are_sent(reference: str, imports: str, tmp_path: Path) -> None:
    where = reference.removesuffix(":clicks").removesuffix(".py").replace(".", "/")
    folder = (tmp_path / where).parent
    folder.mkdir(exist_ok=True)
    (folder / "clicks.py").write_text(imports + CLICKS)
    (folder / "helpers.py").write_text("def double(number):\n    return 2 * number\n")
    (folder / "rules.py").write_text("BONUS = 2\n")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    send = [sys.executable, "-c", SEND, reference]
    sent = subprocess.run(send, cwd=tmp_path, capture_output=True, check=True)
    receive = [sys.executable, "-c", RECEIVE]
    answer = subprocess.run(
        receive, cwd=elsewhere, input=sent.stdout, capture_output=True, check=False
    )
    assert answer.stdout.decode().strip() == "42", answer.stderr.decode()


def test_what_is_installed_is_not_sent() -> None:
    """The workers have it, and much of it could not be sent."""
    for transform in (DataFrame.distinct, partial(DataFrame.limit, num=1), os.path.join, print):
        assert find_own_modules(transform) == []


def test_what_is_beside_an_installed_package_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = find_pipeline("visits-counter").transform
    assert [module.__name__ for module in find_own_modules(ready)] == ["ebbtide"]
    import ebbtide

    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(Path(ebbtide.__file__).parents[1]))
    assert find_own_modules(ready) == []
