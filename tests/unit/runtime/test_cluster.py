"""What differs on a cluster, as far as it needs no JVM."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ebbtide import api
from ebbtide.cli.output import prepare_run
from ebbtide.config import Settings, SparkFlags
from ebbtide.errors import BrokerError, SetupError, UsageError
from ebbtide.pipeline import Console, Delta, Files, Kafka, Pipeline
from ebbtide.replaying import ReplayOptions, replay_pipeline
from ebbtide.reprocessing import ReprocessRequest, SparkSetup, reprocess
from ebbtide.runtime import StreamOptions, cluster, compiler, java, run_stream, submit, versions
from ebbtide.runtime.session import _environment, _set_environment
from ebbtide.systems import READY, find_pipeline
from tests.conftest import Cli

CLUSTER = "spark://host:7077"
HOME = Settings(url="s3a://lake/ebbtide", bootstrap_servers="kafka:9092")
KAFKA = Kafka("clicks", schema="at TIMESTAMP")


def pipeline(**parts: object) -> Pipeline:
    ends: dict[str, object] = {"source": KAFKA, "sink": Console(), "event_time": "at", **parts}
    return Pipeline("clicks", transform=lambda rows: rows, **ends)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", READY)
def test_each_system_runs_on_a_cluster_with_a_home_at_a_url(name: str) -> None:
    ready = find_pipeline(name)
    checkpoint = HOME.location("checkpoints", ready.name)
    cluster.require_shared(CLUSTER, cluster.find_locations(ready, HOME, checkpoint=checkpoint))


@pytest.mark.parametrize(
    ("parts", "settings", "what"),
    [
        ({"sink": Delta("clicks")}, {"url": None}, "sink"),
        ({"sink": Delta("/data/clicks")}, {}, "sink"),
        ({"sink": Files("out", "json")}, {}, "sink"),
        ({"source": Delta("/data/clicks")}, {}, "source"),
        ({"source": Files("/in", "json", schema="at TIMESTAMP")}, {}, "source"),
        ({"dead_letters": Delta("broken")}, {"url": None}, "dead letters"),
    ],
)
def test_a_local_path_is_refused_before_anything_is_written(
    parts: dict[str, object], settings: dict[str, None], what: str, tmp_path: Path
) -> None:
    home = Settings(**{**vars(HOME), "home": tmp_path / "home", **settings})
    options = StreamOptions(checkpoint="s3a://lake/c", master=CLUSTER)
    with pytest.raises(UsageError, match=rf"The {what}, /.*, is on this machine only.*--home s3a:"):
        run_stream(pipeline(**parts), home, options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("master", [CLUSTER, "yarn", "k8s://https://host:443"])
def test_the_checkpoint_of_a_stream_and_of_a_replay_must_be_a_url(
    master: str, tmp_path: Path
) -> None:
    home = Settings(home=tmp_path / "home", bootstrap_servers="kafka:9092")
    refused = pytest.raises(UsageError, match=rf"The checkpoint, {tmp_path}.* runs at {master}")
    with refused:
        run_stream(pipeline(), home, StreamOptions(master=master))
    with refused:
        replay_pipeline(pipeline(), home, ReplayOptions(master=master))
    with refused:
        run_stream(pipeline(), HOME, StreamOptions(checkpoint=f"{tmp_path}/c", master=master))
    assert not list(tmp_path.iterdir())


def test_a_reprocess_keeps_no_journal_on_the_disk_of_the_driver(tmp_path: Path) -> None:
    home = Settings(home=tmp_path / "home", bootstrap_servers="kafka:9092")
    archived = pipeline(archive=Delta("s3a://lake/clicks"))
    request = ReprocessRequest.parse(home, "x", "2025-09-04", "2025-09-05", execute=True)
    with pytest.raises(UsageError, match=rf"The journal, {tmp_path}/home/runs, is on this machine"):
        list(reprocess(request, home, archived, SparkSetup(master=CLUSTER)))
    assert not list(tmp_path.iterdir())


def test_a_master_among_the_settings_is_checked_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Settings(home=tmp_path / "home", bootstrap_servers="kafka:9092")
    conf = {"spark.master": CLUSTER}
    refused = pytest.raises(UsageError, match=rf"The checkpoint, .* runs at {CLUSTER}")
    with refused:
        run_stream(pipeline(), home, StreamOptions(conf=conf))
    with refused:
        run_stream(pipeline(conf=conf), home)
    with refused:
        replay_pipeline(pipeline(conf=conf), home)
    with pytest.raises(BrokerError, match=f"Spark runs at {CLUSTER}"):
        api.run(pipeline(conf=conf), settings=Settings(home=tmp_path))
    assert not list(tmp_path.iterdir())
    (tmp_path / "spark-defaults.conf").write_text("spark.master yarn")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert cluster.find_master(None) == "yarn"
    assert cluster.find_master(None, {}, conf) == CLUSTER
    assert cluster.find_master("local[2]", conf) == "local[2]"
    # as in spark-submit, the variable decides last
    monkeypatch.setenv("MASTER", CLUSTER)
    assert cluster.find_master(None) == "yarn"
    monkeypatch.delenv("SPARK_CONF_DIR")
    assert cluster.find_master(None) == CLUSTER


def test_a_spark_without_a_connector_is_refused_before_a_broker_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "spark_version", lambda: versions.SparkVersion.parse("4.3.0"))
    settings = Settings(home=tmp_path / "home")
    line = r"{} needs the jar {}, and Ebbtide has none for Spark 4\.3 yet\..*'pyspark==4\.2\.\*'"
    kafka = pytest.raises(SetupError, match=line.format("Kafka", "spark-sql-kafka-0-10"))
    with kafka:
        api.run(pipeline(), settings=settings)
    with kafka:
        run_stream(pipeline(), settings)
    with kafka:
        prepare_run(settings, pipeline(), StreamOptions(), broker=True)
    files = Files(str(tmp_path), "json", schema="at TIMESTAMP")
    with pytest.raises(SetupError, match=line.format("Delta", "delta-spark")):
        api.run(pipeline(source=files, sink=Delta("clicks")), settings=settings)
    assert not (tmp_path / "home").exists()
    # what needs no connector runs, and so does one that the user brings
    cluster.require_connectors(pipeline(source=files), {})
    packages = {"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"}
    cluster.require_connectors(pipeline(), packages)


def test_a_folder_that_is_mounted_everywhere_is_named_as_a_url() -> None:
    cluster.require_shared(CLUSTER, {"sink": "hdfs:/lake/clicks"})
    cluster.require_shared(CLUSTER, {"sink": "file:///mnt/shared/clicks"})
    cluster.require_shared("local[2]", {"sink": "/data/clicks"})


def test_a_cluster_does_not_reach_the_embedded_broker() -> None:
    with pytest.raises(BrokerError, match=r"No Kafka is named.*--bootstrap-servers"):
        cluster.require_broker_of_cluster(CLUSTER, Settings())
    cluster.require_broker_of_cluster(CLUSTER, HOME)
    cluster.require_broker_of_cluster(None, Settings())


def test_the_workers_of_a_cluster_have_their_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert _environment({}, local=True)["PYSPARK_PYTHON"] == sys.executable
    elsewhere = _environment({}, local=False)
    assert (elsewhere["PYSPARK_PYTHON"], "SPARK_LOCAL_IP" in elsewhere) == ("python3", False)
    conf = {"spark.pyspark.python": "/opt/python"}
    assert _environment(conf, local=False)["PYSPARK_PYTHON"] == "/opt/python"
    # the next session of this process may have another master
    with _set_environment(elsewhere):
        pass
    assert _environment({}, local=True)["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/users/own")
    assert _environment({}, local=False)["PYSPARK_PYTHON"] == "/users/own"
    # as in Spark, a setting is preferred to the variable: --archive-env is one
    assert _environment(conf, local=False)["PYSPARK_PYTHON"] == "/opt/python"


def test_an_environment_is_sent_to_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "env.tar.gz"
    with pytest.raises(UsageError, match=r"There is no file .*venv-pack -o env\.tar\.gz"):
        cluster.ship_environment(file, {}, CLUSTER)
    file.touch()
    with pytest.raises(UsageError, match=r"workers of a cluster, and Spark runs at local\[2\]"):
        cluster.ship_environment(file, {}, "local[2]")
    assert cluster.ship_environment(file, {"spark.archives": "models.zip"}, CLUSTER) == {
        "spark.archives": f"{file}#environment,models.zip",
        "spark.pyspark.python": "./environment/bin/python",
    }
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(UsageError, match=r"comes too late.*--archives .*env\.tar\.gz#environment"):
        cluster.ship_environment(file, {}, CLUSTER)


def test_an_environment_goes_where_the_pipeline_runs_besides_the_archives_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "env.tar.gz"
    file.touch()
    (tmp_path / "spark-defaults.conf").write_text("spark.archives hdfs:///x.zip#x")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    flags = StreamOptions(archive_env=file, conf={"spark.a": "b"})
    checked = cluster.check_start(pipeline(conf={"spark.master": CLUSTER}), flags, {})
    assert (checked.master, checked.archive_env) == (CLUSTER, None)
    assert checked.conf == {
        "spark.a": "b",
        "spark.archives": f"{file}#environment,hdfs:///x.zip#x",
        "spark.pyspark.python": "./environment/bin/python",
    }


def test_yarn_needs_the_configuration_of_hadoop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with pytest.raises(UsageError, match=r"HADOOP_CONF_DIR is not set\. .*export HADOOP_CONF_DIR="):
        run_stream(pipeline(), HOME, StreamOptions(master="yarn"))
    (tmp_path / "spark-env.sh").touch()  # which may set it
    assert cluster.resolve(SparkFlags(master="yarn")).master == "yarn"
    (tmp_path / "spark-env.sh").unlink()
    monkeypatch.setenv("YARN_CONF_DIR", "/etc/hadoop/conf")
    assert cluster.resolve(SparkFlags(master="yarn")).master == "yarn"


def test_nobody_is_sent_to_the_embedded_broker_from_a_cluster() -> None:
    """Which refuses it: what to do is right wherever Spark runs."""
    advice = BrokerError.unreachable("kafka:9092", 5).next_step
    assert "leave out" not in advice
    assert "if no Kafka is named and Spark runs on this machine" in advice


def test_the_jars_of_s3_come_only_if_a_path_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "jars", lambda set_: [Path(f"{set_}.jar")])

    def names(conf: dict[str, str], *locations: str) -> list[str]:
        ours, *others = cluster.connector_jars(conf, locations)
        assert ours.stem.startswith("ebbtide-")
        return [jar.stem for jar in others]

    assert names({}, "/data/c", "hdfs://host/c") == ["spark"]
    assert names({}, "/data/c", "s3a://lake/c") == names({}, "s3://lake/c") == ["spark", "s3a"]
    own = {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.4.1"}
    assert names(own, "s3a://lake/c") == ["spark"]
    emr = {"spark.driver.extraClassPath": "/usr/lib/hadoop/hadoop-aws.jar:/usr/share/aws/*"}
    assert names(emr, "s3a://lake/c") == ["spark"]
    monkeypatch.setattr(java, "hadoop_version", lambda: "3.3.4")
    with pytest.raises(SetupError, match=r"the Hadoop 3\.3\.4 of .*hadoop-aws:3\.3\.4"):
        names({}, "s3a://lake/c")


def test_what_spark_submit_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The application runs as a file, and a user's module is not taken for one of ours."""
    ours = compiler.own_jar()
    monkeypatch.setattr(java, "jars", lambda set_: [Path(f"{set_}.jar")])
    assert submit.submit_words(s3a=True)[:2] == ["--jars", f"{ours},spark.jar,s3a.jar"]
    monkeypatch.setattr(java, "jars", lambda _set: [])  # there are none for Spark 4.3
    assert submit.submit_words(s3a=False) == ["--jars", str(ours), str(submit.APPLICATION)]
    (tmp_path / "clicks.py").write_text("import config\n")
    run = [sys.executable, str(submit.APPLICATION), "run", "clicks.py:clicks"]
    answer = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "No module named 'config'" in answer.stderr


@pytest.mark.parametrize(
    ("line", "jars"),
    [
        ("spark.master yarn", "spark.jar,s3a.jar"),
        ("spark.jars /opt/a.jar,/opt/b.jar", "spark.jar,s3a.jar,/opt/a.jar,/opt/b.jar"),
        ("spark.jars=/opt/hadoop-aws-3.4.1.jar", "spark.jar,/opt/hadoop-aws-3.4.1.jar"),
        ("spark.jars.packages org.apache.hadoop:hadoop-aws:3.4.1", "spark.jar"),
        ("spark.driver.extraClassPath /usr/lib/hadoop/hadoop-aws.jar", "spark.jar"),
    ],
)
def test_spark_submit_keeps_the_jars_of_spark_defaults(
    line: str, jars: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(java, "jars", lambda set_: [Path(f"{set_}.jar")])
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(f"{line}\n")
    words = submit.submit_words(s3a=True)
    assert words == ["--jars", f"{compiler.own_jar()},{jars}", str(submit.APPLICATION)]


def test_what_spark_submit_cannot_have_is_one_line() -> None:
    """As of a Spark for whose Hadoop there is no S3 connector."""
    program = (
        "import runpy, sys\n"
        "from ebbtide.runtime import java\n"
        "java.hadoop_version = lambda: '3.3.4'\n"
        "java.jars = lambda set_: []\n"
        "sys.argv = ['submit', 's3a']\n"
        "runpy.run_module('ebbtide.runtime.submit', run_name='__main__')"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith("Error: Ebbtide has no S3 connector for the Hadoop 3.3.4")


def test_pyspark_is_in_a_zip_file_under_spark_submit(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "pyspark.zip", "w") as packed:
        packed.writestr("pyspark/__init__.py", "")
        packed.writestr("pyspark/version.py", "__version__: str = '4.2.7'")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "hadoop-client-api-3.5.0.jar").touch()
    program = (
        "from ebbtide.runtime import versions\n"
        "print(versions.spark_version(), versions.hadoop_version())"
    )
    path = f"{tmp_path / 'pyspark.zip'}{os.pathsep}{os.pathsep.join(sys.path)}"
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "SPARK_HOME": str(tmp_path)},
    )
    assert answer.stdout.split() == ["4.2.7", "3.5.0"], answer.stderr


def test_flags_of_a_cluster_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    where = ("--master", CLUSTER, "--bootstrap-servers", "127.0.0.1:1")
    answer = cli("run", "visits-windows-counter", *where, cwd=tmp_path)
    assert answer.returncode == 2
    assert "is on this machine only, and Spark runs at spark://host:7077" in answer.stderr
    answer = cli("run", "visits-windows-counter", "--archive-env", "env.tar.gz", cwd=tmp_path)
    assert (answer.returncode, "There is no file env.tar.gz" in answer.stderr) == (2, True)
