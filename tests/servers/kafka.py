"""A secured Kafka of one broker or several, from the broker's jars, with its own certificates.

Every broker has the listeners of `LISTENERS`. The user `ebbtide` may do everything, and so may the
bearer of the client certificate; the user `guest` may do nothing.
"""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from ebbtide.connections import KafkaConnection
from ebbtide.connectors.kafka.clients import make_client
from ebbtide.local.broker import BROKER, free_port, java_command
from tests.servers.certificates import Identity, make_authority, to_jks

HOST = "localhost"
USER, GUEST = "ebbtide", "guest"
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SASL_SSL": "SASL_SSL",  # SCRAM-SHA-512 and PLAIN
    "SSL": "SSL",  # asks for a client certificate
    "EXPIRED": "SSL",  # its certificate has expired
    "ELSEWHERE": "SSL",  # its certificate is another host's
}
"""Each listener's security protocol."""
_CLUSTER = "ebbtideTestCluster1234"
_START_SECONDS = 240
_MECHANISMS = {
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
}


class SecuredKafka:
    """The brokers, their certificates, and a properties file for each kind of client."""

    def __init__(self, folder: Path, brokers: int) -> None:
        self.folder = folder
        self.password = f"ebbtide-secret-{secrets.token_hex(12)}"
        """Of the users, and of every key and store of a client."""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports = {
            number: {name: free_port() for name in ("CONTROLLER", *LISTENERS)}
            for number in range(1, brokers + 1)
        }
        self.authority = make_authority()
        self._write_certificates()
        self.clients = self._write_clients()
        """By kind, a properties file as every Kafka tool takes it."""

    def address(self, listener: str) -> str:
        """The `bootstrap.servers` of a listener."""
        return ",".join(f"{HOST}:{ports[listener]}" for ports in self._ports.values())

    def start(self, number: int) -> None:
        """Start a broker that was formatted before; `wait` waits for it."""
        with (self._home(number) / "broker.out").open("ab") as out:
            self._processes[number] = subprocess.Popen(
                java_command(BROKER, str(self._properties(number)), log=self._log(number)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, number: int) -> None:
        """Kill a broker as a power cut would."""
        if process := self._processes.pop(number, None):
            process.kill()
            process.wait()

    def wait(self) -> None:
        """Wait until every broker that was started answers and knows all the others."""
        deadline = time.monotonic() + _START_SECONDS
        while not all(self._is_up(number) for number in self._processes):
            assert time.monotonic() < deadline, f"no answer: see {self.folder}"
            time.sleep(0.1)

    def _is_up(self, number: int) -> bool:
        ended = self._processes[number].poll()
        assert ended is None, f"broker {number} ended: see {self._log(number)}"
        own = KafkaConnection(f"{HOST}:{self._ports[number]['PLAINTEXT']}")
        try:
            metadata = make_client(AdminClient, own).list_topics(timeout=2)
        except KafkaException:
            return False
        return set(self._processes) <= set(metadata.brokers)

    def format(self) -> None:
        """Write the settings of every broker and format its storage, users included."""
        for number in self._ports:
            self._home(number).mkdir()
            properties = self._properties(number)
            properties.write_text(_to_properties(self._settings(number)))
            users = [
                f"--add-scram=SCRAM-SHA-512=[name={user},password={self.password}]"
                for user in (USER, GUEST)
            ]
            format_ = ("format", "-t", _CLUSTER, "-c", str(properties), *users)
            tool = java_command("kafka.tools.StorageTool", *format_, log=self._log(number))
            subprocess.run(tool, capture_output=True, check=True)

    def _home(self, number: int) -> Path:
        return self.folder / f"broker-{number}"

    def _properties(self, number: int) -> Path:
        return self._home(number) / "server.properties"

    def _log(self, number: int) -> Path:
        return self._home(number) / "broker.log"

    def _settings(self, number: int) -> dict[str, str]:
        ports, copies = self._ports[number], str(len(self._ports))
        voters = [f"{n}@{HOST}:{ports['CONTROLLER']}" for n, ports in self._ports.items()]
        protocols = {"CONTROLLER": "PLAINTEXT", **LISTENERS}
        users = "".join(f' user_{user}="{self.password}"' for user in (USER, GUEST))
        scram, plain = _MECHANISMS["SCRAM-SHA-512"], _MECHANISMS["PLAIN"]
        return {
            "process.roles": "broker,controller",
            "node.id": str(number),
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(f"{name}://{HOST}:{ports[name]}" for name in protocols),
            "advertised.listeners": ",".join(f"{n}://{HOST}:{ports[n]}" for n in LISTENERS),
            "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self._home(number) / "data"),
            "auto.create.topics.enable": "false",
            "num.partitions": "2",
            "default.replication.factor": copies,
            "min.insync.replicas": "2" if len(self._ports) > 2 else "1",
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            # who may do what: the brokers talk to each other as ANONYMOUS
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{USER};User:CN={USER}",
            # certificates
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.expired.ssl.keystore.location": str(self.folder / "expired.pem"),
            "listener.name.elsewhere.ssl.keystore.location": str(self.folder / "elsewhere.pem"),
            # users
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{scram} required;",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{plain} required{users};",
        }

    def _write_certificates(self) -> None:
        ca, hosts = self.authority, (HOST, "127.0.0.1")
        client = ca.sign(USER)
        texts = {
            "ca.pem": ca.certificate_pem,
            "stranger.pem": make_authority("A stranger").certificate_pem,
            "broker.pem": ca.sign(HOST, hosts=hosts).to_pem(),
            "expired.pem": ca.sign(HOST, hosts=hosts, expired=True).to_pem(),
            "elsewhere.pem": ca.sign("elsewhere", hosts=("elsewhere.example",)).to_pem(),
            "client.pem": client.to_pem(self.password),
            "client-expired.pem": ca.sign(USER, expired=True).to_pem(self.password),
        }
        for name, text in texts.items():
            (self.folder / name).write_text(text)
        self._write_stores(ca, client)

    def _write_stores(self, ca: Identity, client: Identity) -> None:
        stores = {
            "truststore": ca.to_pkcs12_truststore(self.password),
            "client": client.to_pkcs12(self.password),
        }
        for name, store in stores.items():
            file = self.folder / f"{name}.p12"
            file.write_bytes(store)
            to_jks(file, self.folder / f"{name}.jks", self.password)

    def _write_clients(self) -> dict[str, Path]:
        sasl = {"security.protocol": "SASL_SSL", "bootstrap.servers": self.address("SASL_SSL")}
        mutual = {"security.protocol": "SSL", "bootstrap.servers": self.address("SSL")}
        kinds = {
            "scram": {**sasl, **self.login("SCRAM-SHA-512"), **self.store("truststore", "ca.pem")},
            "plain": {**sasl, **self.login("PLAIN"), **self.store("truststore", "truststore.p12")},
            "mtls-pem": {
                **mutual,
                **self.store("truststore", "ca.pem"),
                **self.store("keystore", "client.pem"),
            },
            "mtls-pkcs12": {
                **mutual,
                **self.store("truststore", "truststore.p12"),
                **self.store("keystore", "client.p12"),
            },
            "mtls-jks": {
                **mutual,
                **self.store("truststore", "truststore.jks"),
                **self.store("keystore", "client.jks"),
            },
        }
        return {kind: self.write_client(kind, options) for kind, options in kinds.items()}

    def login(
        self, mechanism: str, user: str = USER, password: str | None = None
    ) -> dict[str, str]:
        """The properties of a user and password."""
        login = f'username="{user}" password="{password or self.password}"'
        return {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"{_MECHANISMS[mechanism]} required {login};",
        }

    def store(self, role: str, file: str) -> dict[str, str]:
        """The properties of a `truststore` or a `keystore` in one of our files."""
        type_ = {".pem": "PEM", ".p12": "PKCS12", ".jks": "JKS"}[Path(file).suffix]
        at = {f"ssl.{role}.location": str(self.folder / file), f"ssl.{role}.type": type_}
        if type_ == "PEM":
            return at if role == "truststore" else {**at, "ssl.key.password": self.password}
        return {**at, f"ssl.{role}.password": self.password}

    def write_client(self, name: str, options: Mapping[str, str]) -> Path:
        """A properties file of a client."""
        file = self.folder / f"{name}.properties"
        file.write_text(_to_properties(options))
        file.chmod(0o600)
        return file


@contextmanager
def secured_kafka(folder: Path, brokers: int = 1) -> Iterator[SecuredKafka]:
    """A running cluster, its data in a folder that is empty or missing."""
    folder.mkdir(parents=True, exist_ok=True)
    kafka = SecuredKafka(folder, brokers)
    kafka.format()
    numbers = range(1, brokers + 1)
    try:
        for number in numbers:
            kafka.start(number)
        kafka.wait()
        yield kafka
    finally:
        for number in numbers:
            kafka.kill(number)


def _to_properties(options: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in options.items())
