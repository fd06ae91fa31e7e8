"""What clients get of a connection, by Java's names and by librdkafka's."""

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives import serialization

from ebbtide.connections import KafkaConnection, own_connection
from ebbtide.connections.jaas import OAUTH, PLAIN, SCRAM, Login, parse_login
from ebbtide.connections.mapping import to_client, to_java, without_decided
from ebbtide.connections.properties import parse_properties
from ebbtide.connectors.kafka.clients import make_client
from ebbtide.errors import MissingExtraError, UsageError

PASSWORD = "changeit-ą"
JAAS = "sasl.jaas.config"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


def _login(module: str, **options: str) -> str:
    return Login(module, options).to_text()


SASL = {"security.protocol": "SASL_SSL"}
OIDC = {
    "sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
    "sasl.oauthbearer.client.id": "visits",
    "sasl.oauthbearer.client.secret": "s",
    "sasl.oauthbearer.scope": "kafka",
}
PAIRS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "nothing": ({}, {}),
    "scram": (
        {"sasl.mechanism": "SCRAM-SHA-512", JAAS: _login(SCRAM, username="a", password="b")},
        {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "a", "sasl.password": "b"},
    ),
    "plain": (
        {"sasl.mechanism": "PLAIN", JAAS: _login(PLAIN, username="a", password="b")},
        {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"},
    ),
    "oidc": (
        {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": HANDLER,
            "sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
            JAAS: _login(
                OAUTH, clientId="visits", clientSecret="s", scope="kafka", extension_a="b"
            ),
        },
        {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.extensions": "a=b",
            **OIDC,
        },
    ),
    "pem in line": (
        {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----…",
        },
        {"ssl.ca.pem": "-----BEGIN CERTIFICATE-----…"},
    ),
    "any host": (
        {"ssl.endpoint.identification.algorithm": ""},
        {"ssl.endpoint.identification.algorithm": "none"},
    ),
    "same in both": ({"client.id": "visits"}, {"client.id": "visits"}),
}


@pytest.mark.parametrize("case", PAIRS)
def test_each_way(case: str) -> None:
    java, client = PAIRS[case]
    assert to_client(java) == client
    assert to_java(client) == java
    assert to_java(java) == java
    assert to_client(client) == client


def test_newer_names_of_oidc() -> None:
    newer = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.client.credentials.client.id": "visits",
        "sasl.oauthbearer.client.credentials.client.secret": "s",
    }
    assert to_client(newer)["sasl.oauthbearer.client.secret"] == "s"
    login = parse_login(to_java(newer)[JAAS])
    assert login.options == {"clientId": "visits", "clientSecret": "s"}
    for text in (f"{OAUTH} required ;", f'{OAUTH} required clientId="other" scope="kafka";'):
        both = {**newer, JAAS: text, "sasl.oauthbearer.scope": "kafka"}
        client, java = to_client(both), to_java(both)
        login = parse_login(java[JAAS])
        assert login.options == {"clientId": "visits", "clientSecret": "s", "scope": "kafka"}
        assert [client[f"sasl.oauthbearer.{name}"] for name in ("client.id", "scope")] == [
            "visits",
            "kafka",
        ]
        assert not any(name.startswith("sasl.oauthbearer.") for name in java)
    older = {
        "sasl.login.callback.handler.class": HANDLER.replace(
            "OAuthBearerLoginC", "secured.OAuthBearerLoginC"
        )
    }
    assert "sasl.login.callback.handler.class" not in to_client(newer | older)


def test_what_is_no_connection_goes_to_spark_only() -> None:
    options = {"max.poll.records": "5", "schema.registry.url": "https://x", "acks": "all"}
    assert to_client(options) == {}
    assert to_java(options) == options
    assert to_client({"ssl.protocol": "TLSv1.3", "sasl.login.refresh.buffer.seconds": "9"}) == {}
    assert without_decided({"group.id": "x", "auto.offset.reset": "latest", "acks": "1"}) == {
        "acks": "1"
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.engine.factory.class", "a.B"),
        ("ssl.provider", "BCFIPS"),
        ("ssl.cipher.suites", "TLS_AES_256_GCM_SHA384"),
        ("ssl.enabled.protocols", "TLSv1.1"),
        ("config.providers", "file"),
        (
            "sasl.login.callback.handler.class",
            "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        ),
        ("sasl.client.callback.handler.class", "a.B"),
        ("sasl.mechanism", "GSSAPI"),
        ("sasl.mechanism", "AWS_MSK_IAM"),
        (JAAS, "com.sun.security.auth.module.Krb5LoginModule required;"),
        (JAAS, _login(SCRAM, username="a", password="b", tokenauth="true")),
    ],
)
def test_what_our_client_cannot_express_is_refused_by_name(name: str, value: str) -> None:
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", name: value}
    with pytest.raises(UsageError, match=f"property {name}.* cannot be given to Ebbtide's own"):
        to_client(options)
    assert to_java(options) == options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.ssl.certificate.verification", "false"),
        ("ssl.crl.location", "/etc/crl.pem"),
        ("ssl.cipher.suites", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("ssl.ca.location", "probe"),
        ("ssl.ca.location", "/"),
        ("https.ca.location", "/etc/ca.pem"),
    ],
)
def test_what_spark_cannot_express_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"property {name}.* cannot be given to Spark's"):
        to_java({name: value})
    assert to_client({name: value}) == {name: value}


def test_tls_versions_that_both_have_are_left_to_them() -> None:
    assert to_client({"ssl.enabled.protocols": "TLSv1.2,TLSv1.3"}) == {}
    assert to_client({"ssl.enabled.protocols": "TLSv1.3"}) == {}
    assert to_java({"enable.ssl.certificate.verification": "true"}) == {}


def test_a_mistyped_protocol_is_named_first() -> None:
    with pytest.raises(UsageError, match=r"no security\.protocol SASL-SSL\. Use one of PLAINTEXT"):
        to_client({"security.protocol": "SASL-SSL"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ssl.keystore.location": "client.pem"}, r"PEM lib\. Check ssl\.key\.password and"),
        (
            {"ssl.keystore.location": "client.p12", "ssl.keystore.password": "wrong"},
            r"mac verify failure\. Check ssl\.key\.password and ssl\.keystore\.password in",
        ),
        ({"socket.timeout.ms": "5"}, r"outside allowed range \S+\. Correct your Kafka config"),
    ],
)
def test_a_client_that_cannot_be_made_says_why(
    stores: Path, options: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stores)
    with pytest.raises(UsageError, match=says) as refused:
        make_client(AdminClient, KafkaConnection("a:1", {"security.protocol": "SSL", **options}))
    assert len(str(refused.value).splitlines()) == 1


def test_connections_that_never_idle_out() -> None:
    client = to_client({"connections.max.idle.ms": "-1"})
    assert client == {"connections.max.idle.ms": "0"}


def test_two_logins_are_one_too_many() -> None:
    both = {
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        JAAS: _login(PLAIN, username="b", password="hunter2"),
    }
    with pytest.raises(UsageError, match=r"Both sasl\.jaas\.config and sasl\.username") as refusal:
        to_java(both)
    assert "hunter2" not in str(refusal.value)
    with pytest.raises(UsageError, match="has no username or no password"):
        to_client({"sasl.mechanism": "PLAIN", JAAS: _login(PLAIN, username="b")})


def test_what_is_a_connection_of_its_own() -> None:
    options = {"Kafka.SASL.Mechanism": "PLAIN", "kafka.group.id": "x", "failOnDataLoss": "false"}
    assert own_connection(options) == {"sasl.mechanism": "PLAIN"}


# --- stores -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stores() -> Path:
    """An authority and a client in every form; Java's keytool has written the JKS files."""
    return Path(__file__).parents[2] / "fixtures" / "stores"


@pytest.mark.parametrize("name", ["ca.pem", "trust.p12", "trust.jks"])
def test_a_trust_store_of_each_kind_is_the_same_certificate(stores: Path, name: str) -> None:
    location = {"ssl.truststore.location": str(stores / name)}
    for declared in ("PEM", "JKS", "PKCS12"):
        password = {"ssl.truststore.password": "changeit", "ssl.truststore.type": declared}
        pem = to_client({**location, **password})["ssl.ca.pem"]
        assert pem == (stores / "ca.pem").read_text().split("\n", 1)[1]
        java = to_java({**location, **password})
        # by its content: Java refuses the password of a PEM file, and reads no other as PEM
        of_content = {"ca.pem": ("PEM",), "trust.jks": ("JKS", "PKCS12")}
        assert java["ssl.truststore.type"] in of_content.get(name, ("PKCS12", "JKS"))
        assert ("ssl.truststore.password" in java) == (name != "ca.pem")
    text = {"ssl.truststore.certificates": pem, "ssl.truststore.password": "changeit"}
    assert to_java(text) == {"ssl.truststore.certificates": pem, "ssl.truststore.type": "PEM"}


def test_a_key_store_is_for_java_what_it_is(stores: Path) -> None:
    pem = {"ssl.keystore.location": str(stores / "client.pem"), "ssl.key.password": PASSWORD}
    for declared in ("PEM", "JKS"):
        given = {"ssl.keystore.type": declared, "ssl.keystore.password": "changeit"}
        assert to_java({**pem, **given}).keys() == {
            "ssl.keystore.type",
            "ssl.keystore.key",
            "ssl.keystore.certificate.chain",
        }
    pkcs12 = {"ssl.keystore.location": str(stores / "client.p12"), "ssl.keystore.type": "PEM"}
    assert to_java({**pkcs12, "ssl.keystore.password": "x"})["ssl.keystore.type"] == "PKCS12"


def test_a_pem_file_may_begin_with_a_long_text(stores: Path, tmp_path: Path) -> None:
    """As `openssl x509 -text` writes it."""
    file = tmp_path / "ca.pem"
    file.write_text("Certificate:\n" + "    00:11:22\n" * 1000 + (stores / "ca.pem").read_text())
    options = {"ssl.truststore.location": str(file), "ssl.truststore.type": "PEM"}
    assert to_client(options)["ssl.ca.pem"].startswith("-----BEGIN CERTIFICATE-----\n")
    assert to_java(options) == options


def test_inline_pem_may_be_one_line(stores: Path) -> None:
    r"""As a properties file joins lines that end with a blank and a \."""
    java = to_java(
        {"ssl.keystore.location": str(stores / "client.pem"), "ssl.key.password": PASSWORD}
    )
    texts = {
        "ssl.truststore.certificates": (stores / "ca.pem").read_text().split("\n", 1)[1],
        "ssl.keystore.key": java["ssl.keystore.key"],
        "ssl.keystore.certificate.chain": java["ssl.keystore.certificate.chain"],
    }
    lines = (f"{n}={' '.join(text.splitlines())}" for n, text in texts.items())
    joined = parse_properties("\n".join(["security.protocol=SSL ", *lines]))
    assert all("\n" not in value for value in joined.values())
    AdminClient(KafkaConnection("localhost:1", joined).client_settings())
    encrypted = " ".join((stores / "key.pem").read_text().splitlines())
    converted = to_java({**joined, "ssl.keystore.key": encrypted, "ssl.key.password": PASSWORD})
    assert converted["ssl.keystore.key"].startswith("-----BEGIN PRIVATE KEY-----\n")


def test_blanks_around_a_value_are_no_part_of_it(stores: Path) -> None:
    text = (
        f"security.protocol=SASL_SSL \nsasl.mechanism=PLAIN\t\nssl.ca.location={stores}/ca.pem \n"
    )
    options = parse_properties(
        f"{text}sasl.jaas.config={_login(PLAIN, username='a', password='b')} "
    )
    client = KafkaConnection("localhost:1", options).client_settings()
    assert (client["security.protocol"], client["sasl.mechanism"]) == ("SASL_SSL", "PLAIN")
    assert to_java(options)["ssl.truststore.location"] == f"{stores}/ca.pem"
    own = {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b "}
    assert to_client(own)["sasl.password"] == "b ", "librdkafka takes it as it is"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ssl.keystore.key", r"has no certificate\. Add ssl\.keystore\.certificate\.chain"),
        ("ssl.key.location", "has no certificate"),
        ("ssl.certificate.location", r"has no private key\. Add ssl\.keystore\.key"),
        ("ssl.keystore.certificate.chain", "has no private key"),
    ],
)
def test_half_an_identity_is_refused(name: str, says: str) -> None:
    for translate in (to_client, to_java):
        with pytest.raises(UsageError, match=f"{re.escape(name)} {says}"):
            translate({"security.protocol": "SSL", name: "text"})


def test_a_damaged_key_is_named(stores: Path) -> None:
    label = "ENCRYPTED PRIVATE KEY"
    key = f"-----BEGIN {label}-----\nabcde\n-----END {label}-----"
    chain = (stores / "certificate.pem").read_text()
    with pytest.raises(UsageError, match="The private key is damaged, or cannot be opened"):
        to_java({"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain})


@pytest.mark.parametrize("name", ["client.pem", "client.p12", "client.jks"])
def test_a_key_store_of_each_kind_makes_a_client(stores: Path, name: str) -> None:
    options = {"security.protocol": "SSL", "ssl.keystore.location": str(stores / name)}
    secret = (
        ("ssl.key.password", PASSWORD)
        if name.endswith("pem")
        else ("ssl.keystore.password", "changeit")
    )
    connection = KafkaConnection("localhost:1", {**options, secret[0]: secret[1]})
    AdminClient(connection.client_settings())  # OpenSSL takes key and certificate
    assert connection.certificate_end() is not None
    java = connection.spark_options()
    assert ("kafka.ssl.keystore.key" in java) == name.endswith("pem")


def test_files_of_librdkafka_are_texts_for_java(stores: Path) -> None:
    options = {
        "ssl.key.location": str(stores / "key.pem"),
        "ssl.certificate.location": str(stores / "certificate.pem"),
        "ssl.key.password": PASSWORD,
    }
    java = to_java(options)
    assert java.pop("ssl.keystore.key").startswith("-----BEGIN PRIVATE KEY-----")
    assert java == {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": (stores / "certificate.pem").read_text(),
    }


def test_a_key_that_java_cannot_read_is_converted(stores: Path) -> None:
    location = {"ssl.keystore.location": str(stores / "client.pem"), "ssl.keystore.type": "PEM"}
    java = to_java({**location, "ssl.key.password": PASSWORD})
    assert java.keys() == {
        "ssl.keystore.type",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
    }
    key = serialization.load_pem_private_key(java["ssl.keystore.key"].encode(), None)
    old = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode()
    assert old.startswith("-----BEGIN EC PRIVATE KEY")
    chain = {"ssl.certificate.pem": java["ssl.keystore.certificate.chain"]}
    assert to_java({**chain, "ssl.key.pem": old}) == java
    assert to_java(java) == java, "in a form that Java reads it stays as it is"
    with pytest.raises(UsageError, match=r"cannot be opened.* Check ssl\.key\.password"):
        to_java({**location, "ssl.key.password": "wrong"})


@pytest.mark.parametrize(
    ("file", "password", "says"),
    [
        ("trust.jks", "wrong", "its password is wrong"),
        ("trust.p12", "wrong", "its password is wrong"),
        ("key.pem", "changeit", "holds no certificate"),
        ("client.jks", "changeit", "holds no certificate"),
        ("none.jks", "changeit", "cannot be read: No such file"),
    ],
)
def test_a_store_that_cannot_be_used_is_named(
    stores: Path, file: str, password: str, says: str
) -> None:
    options = {
        "ssl.truststore.location": str(stores / file),
        "ssl.truststore.password": password,
    }
    with pytest.raises(UsageError, match=says) as refusal:
        to_client(options)
    assert file in str(refusal.value)


@pytest.mark.parametrize(
    ("file", "options", "says"),
    [
        ("client.jks", {"ssl.key.password": "other"}, "cannot be opened with this password"),
        ("trust.jks", {}, "holds no private key"),
    ],
)
def test_a_jks_key_that_cannot_be_used_is_named(
    stores: Path, file: str, options: dict[str, str], says: str
) -> None:
    location = {"ssl.keystore.location": str(stores / file), "ssl.keystore.password": "changeit"}
    with pytest.raises(UsageError, match=says):
        to_client({**location, **options})


def test_a_cut_jks_is_no_store(stores: Path, tmp_path: Path) -> None:
    whole = (stores / "trust.jks").read_bytes()
    for length in range(4, len(whole), 37):
        (tmp_path / "cut.jks").write_bytes(whole[:length])
        with pytest.raises(UsageError):
            to_client({"ssl.truststore.location": str(tmp_path / "cut.jks")})


def test_a_pkcs12_trust_store_names_its_extra(
    stores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[tls\]"):
        to_client({"ssl.truststore.location": str(stores / "trust.p12")})


# --- secrets ----------------------------------------------------------------------------------


def test_a_text_of_another_library_is_redacted() -> None:
    options = {
        JAAS: _login(PLAIN, username="visits", password="hunter2"),
        "ssl.key.password": "hunter22",
    }
    connection = KafkaConnection("kafka:9093", options)
    assert connection.redact("visits: hunter2, hunter22") == "visits: ***, ***"
    assert connection.user == "visits"


@pytest.mark.parametrize(
    "options",
    [
        {"sasl.mechanism": "PLAIN", "sasl.password": "hunter2", "ssl.nonsense": "hunter2"},
        {"ssl.key.pem": "hunter2", "security.protocol": "SSL"},
        {"ssl.key.password": "hunter2", "enable.ssl.certificate.verification": "hunter2"},
        {JAAS: "hunter2"},
    ],
)
def test_no_refusal_shows_a_secret(options: dict[str, str]) -> None:
    with pytest.raises(UsageError) as refusal:
        make_client(AdminClient, KafkaConnection("localhost:1", options))
    assert "hunter2" not in str(refusal.value)


# --- the documentation ------------------------------------------------------------------------


def test_the_examples_of_the_documentation_connect_both_sides(stores: Path) -> None:
    document = (Path(__file__).parents[3] / "docs" / "production" / "kafka.md").read_text("utf-8")
    blocks = re.findall(r"^```properties\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    for block in blocks:
        properties = parse_properties(block.replace("/etc/kafka", str(stores)))
        connection = KafkaConnection(properties.pop("bootstrap.servers"), properties)
        make_client(AdminClient, connection)
        assert connection.spark_options()["kafka.security.protocol"] in ("SASL_SSL", "SSL")
