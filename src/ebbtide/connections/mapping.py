"""Translate the properties of a Kafka client between Java's names and librdkafka's.

Users write either. What one side cannot express is refused by name when that side is used. What
has nothing to do with the connection, such as `max.poll.records`, goes to Spark only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ebbtide.connections import jaas, stores
from ebbtide.errors import UsageError

Options = Mapping[str, str]
PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
SERVERS = "bootstrap.servers"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_HANDLER = "sasl.login.callback.handler.class"
_HOST_CHECK = "ssl.endpoint.identification.algorithm"
_VERIFY = "enable.ssl.certificate.verification"
_MAX_IDLE = "connections.max.idle.ms"
_TLS_VERSIONS, _CIPHERS = "ssl.enabled.protocols", "ssl.cipher.suites"
_KEYSTORE, _KEYSTORE_TYPE = "ssl.keystore.location", "ssl.keystore.type"
_KEY, _CHAIN = "ssl.keystore.key", "ssl.keystore.certificate.chain"
_KEYS = {_KEY, "ssl.key.pem", "ssl.key.location"}
_CHAINS = {_CHAIN, "ssl.certificate.pem", "ssl.certificate.location"}
_INLINE = {
    *(_KEY, _CHAIN, "ssl.key.pem", "ssl.certificate.pem"),
    *("ssl.truststore.certificates", "ssl.ca.pem"),
}
_CLIENT, _SPARK = "Ebbtide's own Kafka client (librdkafka)", "Spark's Kafka client (Java)"

_ALIASES = {
    "metadata.broker.list": SERVERS,
    "sasl.mechanisms": MECHANISM,
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
_MODULES = {"PLAIN": jaas.PLAIN, "SCRAM-SHA-256": jaas.SCRAM, "SCRAM-SHA-512": jaas.SCRAM}
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_OAUTH_HANDLERS = (
    _OAUTH_HANDLER,
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
_OAUTH = {
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
"""Options of Java's login module, and what librdkafka calls them."""
_EXTENSION = "extension_"

SECURITY = ("security.", "ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https.")
"""How the names of properties begin that both sides must have, or the connection is another."""
_ALSO_CLIENT = (
    "client.id",
    "client.rack",
    "client.dns.lookup",
    _MAX_IDLE,
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.timeout.ms",
    "broker.address.family",
    "broker.address.ttl",
)
"""What else our own clients take; Java ignores those that it does not know."""
_INSIDE_JAVA = (
    "ssl.protocol",
    "ssl.keymanager.algorithm",
    "ssl.trustmanager.algorithm",
    "ssl.secure.random.implementation",
    "sasl.login.refresh.",
    "sasl.login.retry.",
    "sasl.login.connect.",
    "sasl.login.read.",
    "sasl.oauthbearer.jwks.",
    "sasl.oauthbearer.expected.",
    "sasl.oauthbearer.clock.",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.header.urlencode",
)
"""How Java does something within itself: nothing that another client would have to do, too."""
_ONLY_JAVA = (
    "config.providers",
    "security.providers",
    "ssl.engine.factory.class",
    "ssl.provider",
    "sasl.client.callback.handler.class",
    "sasl.login.class",
    "sasl.oauthbearer.jwt.retriever.class",
)
_ONLY_CLIENT = (
    "https.ca.location",
    "https.ca.pem",
    "ssl.ca.certificate.stores",
    "ssl.crl.location",
    "ssl.curves.list",
    "ssl.engine.id",
    "ssl.engine.location",
    "ssl.providers",
    "ssl.sigalgs.list",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.metadata.authentication.type",
    "enable.sasl.oauthbearer.unsecure.jwt",
)
_DECIDED = (
    "auto.offset.reset",
    "enable.auto.commit",
    "group.id",
    "group.instance.id",
    "interceptor.classes",
    "key.deserializer",
    "key.serializer",
    "transactional.id",
    "value.deserializer",
    "value.serializer",
)
"""What Ebbtide and Spark decide themselves; the files of other tools often have them."""


def without_decided(options: Options) -> dict[str, str]:
    """Properties without those that say what to read and how to store it.

    >>> without_decided({"group.id": "console", "client.id": "visits"})
    {'client.id': 'visits'}
    """
    return {name: value for name, value in options.items() if name not in _DECIDED}


def use_java_names(options: Options) -> dict[str, str]:
    """Properties by the names of Java's clients; these ignore blanks around a value.

    >>> use_java_names({"metadata.broker.list": "kafka:9092 "})
    {'bootstrap.servers': 'kafka:9092'}
    """
    # of librdkafka's own login, a blank may be a part
    kept = ("sasl.username", "sasl.password")
    return {_ALIASES.get(n, n): v if n in kept else v.strip(" \t\f") for n, v in options.items()}


def _prepare(options: Options) -> dict[str, str]:
    """What both sides can read, or a refusal of half an identity, which both would ignore."""
    left = use_java_names(options)
    for name in _INLINE & left.keys():
        left[name] = stores.normalize_pem(left[name])
    keys, chains = _KEYS & left.keys(), _CHAINS & left.keys()
    if keys and not chains:
        raise UsageError(f"The Kafka property {min(keys)} has no certificate.", f"Add {_CHAIN}.")
    if chains and not keys:
        raise UsageError(f"The Kafka property {min(chains)} has no private key.", f"Add {_KEY}.")
    return left


# --- librdkafka -------------------------------------------------------------------------------


def to_client(options: Options) -> dict[str, str]:
    """The settings of a librdkafka client.

    >>> to_client({"ssl.endpoint.identification.algorithm": "", "max.poll.records": "5"})
    {'ssl.endpoint.identification.algorithm': 'none'}
    """
    left = _prepare(options)
    for name in _ONLY_JAVA:
        if name in left:
            raise _refuse(name, _CLIENT)
    # of what both have it takes the newest, so TLSv1.3 alone needs no setting
    if not re.search(r"TLSv1\.[23]", left.pop(_TLS_VERSIONS, "TLSv1.3")):
        raise _refuse(_TLS_VERSIONS, _CLIENT, "Add TLSv1.2 to it.")
    if "TLS_" in left.get(_CIPHERS, ""):
        raise _refuse(_CIPHERS, _CLIENT)
    settings = {**_client_login(left), **_client_trust(left), **_client_identity(left)}
    for name, value in left.items():
        is_security = name.startswith(SECURITY) and not name.startswith(_INSIDE_JAVA)
        if is_security or name in _ALSO_CLIENT:
            settings[name] = value
    if settings.get(_MAX_IDLE) == "-1":
        settings[_MAX_IDLE] = "0"  # never, too
    if _HOST_CHECK in settings:
        settings[_HOST_CHECK] = settings[_HOST_CHECK].lower() or "none"
    return settings


def _client_login(left: dict[str, str]) -> dict[str, str]:
    protocol = left.get(PROTOCOL, _PROTOCOLS[0]).upper()
    if protocol not in _PROTOCOLS:
        raise UsageError(
            f"There is no {PROTOCOL} {protocol}.", f"Use one of {', '.join(_PROTOCOLS)}."
        )
    mechanism = left.get(MECHANISM, "GSSAPI").upper()
    if "SASL" in protocol and mechanism not in (*_MODULES, "OAUTHBEARER"):
        raise _refuse(
            f"{MECHANISM}={mechanism}", _CLIENT, "Use SCRAM-SHA-512, PLAIN or OAUTHBEARER."
        )
    handler = left.pop(_HANDLER, _OAUTH_HANDLER)
    if handler not in _OAUTH_HANDLERS:
        raise _refuse(_HANDLER, _CLIENT)
    text = left.pop(JAAS, None)
    if mechanism == "OAUTHBEARER":
        left.setdefault("sasl.oauthbearer.method", "oidc")
    if text is None:
        return {}
    login = jaas.parse_login(text)
    if login.module == jaas.OAUTH:
        return _client_oauth(login, left)
    if login.module not in _MODULES.values():
        raise _refuse(f"{JAAS} with {login.module}", _CLIENT)
    if not {"username", "password"} <= set(login.options):
        raise UsageError(f"{JAAS} has no username or no password.", "Add both.")
    if login.options.get("tokenauth", "").lower() == "true":
        raise _refuse(f"{JAAS} with the option tokenauth", _CLIENT)
    names = ("username", "password")
    return {f"sasl.{name}": login.options[name] for name in names}


def _client_oauth(login: jaas.Login, left: dict[str, str]) -> dict[str, str]:
    settings, extensions = {}, []
    for name, value in login.options.items():
        if name in _OAUTH:
            settings[_OAUTH[name]] = left.pop(_OAUTH[name], value)  # as Kafka decides
        elif name.startswith(_EXTENSION):
            extensions.append(f"{name.removeprefix(_EXTENSION)}={value}")
        else:
            raise _refuse(f"{JAAS} with the option {name}", _CLIENT)
    if extensions:
        settings["sasl.oauthbearer.extensions"] = ",".join(extensions)
    return settings


def _client_trust(left: dict[str, str]) -> dict[str, str]:
    location, text = (left.pop(f"ssl.truststore.{n}", None) for n in ("location", "certificates"))
    password = left.pop("ssl.truststore.password", None)
    left.pop("ssl.truststore.type", None)
    if text is not None:
        return {"ssl.ca.pem": text}
    if location is None:
        return {}
    return {"ssl.ca.pem": stores.read_trusted(location, password, "ssl.truststore.location")}


def _client_identity(left: dict[str, str]) -> dict[str, str]:
    key, chain = left.pop(_KEY, None), left.pop(_CHAIN, None)
    left.pop(_KEYSTORE_TYPE, None)
    option = _KEYSTORE
    if key is not None and chain is not None:
        return {"ssl.key.pem": key, "ssl.certificate.pem": chain}
    if option not in left:
        return {}
    location, kind = left[option], stores.store_type(left[option], option)
    if kind == stores.PKCS12:
        return {}  # it reads such a store itself
    del left[option]
    password = left.pop("ssl.keystore.password", None)
    if kind == stores.PEM:
        return {"ssl.key.location": location, "ssl.certificate.location": location}
    key_password = left.pop("ssl.key.password", None)
    identity = stores.read_jks_identity(location, password, key_password, option)
    return {"ssl.key.pem": identity.key, "ssl.certificate.pem": identity.chain}


# --- Java -------------------------------------------------------------------------------------


def to_java(options: Options) -> dict[str, str]:
    """The properties of Java's clients, which are Spark's.

    >>> to_java({"ssl.ca.location": "/etc/ca.pem"})
    {'ssl.truststore.type': 'PEM', 'ssl.truststore.location': '/etc/ca.pem'}
    """
    left = _prepare(options)
    for name in _ONLY_CLIENT:
        if name in left:
            raise _refuse(name, _SPARK)
    if left.pop(_VERIFY, "true").lower() != "true":
        hint = "Remove it, and name your authority in ssl.truststore.location."
        raise _refuse(_VERIFY, _SPARK, hint)
    if _CIPHERS in left and "TLS_" not in left[_CIPHERS]:
        raise _refuse(_CIPHERS, _SPARK)
    properties = {**_java_login(left), **_java_trust(left), **_java_identity(left)}
    properties = {**left, **properties}
    if PROTOCOL in properties:
        properties[PROTOCOL] = properties[PROTOCOL].upper()
    if properties.get(_HOST_CHECK, "").lower() == "none":
        properties[_HOST_CHECK] = ""
    return properties


def _java_login(left: dict[str, str]) -> dict[str, str]:
    names = ("username", "password")
    login = {n: left.pop(f"sasl.{n}") for n in names if f"sasl.{n}" in left}
    if login and JAAS in left:
        raise UsageError(f"Both {JAAS} and sasl.{next(iter(login))} are given.", "Remove one.")
    if login:
        mechanism = left.get(MECHANISM, "").upper()
        if mechanism not in _MODULES:
            raise _refuse(f"sasl.username with {MECHANISM}={mechanism}", _SPARK)
        return {JAAS: jaas.Login(_MODULES[mechanism], login).to_text()}
    left.pop("sasl.oauthbearer.method", None)
    return _java_oauth(left) if left.get(MECHANISM, "").upper() == "OAUTHBEARER" else {}


def _java_oauth(left: dict[str, str]) -> dict[str, str]:
    """The login with what is given beside it, which Java's older clients read nowhere else."""
    left.setdefault(_HANDLER, _OAUTH_HANDLER)
    login = jaas.parse_login(left.pop(JAAS)) if JAAS in left else jaas.Login(jaas.OAUTH)
    given = {java: left.pop(ours) for java, ours in _OAUTH.items() if ours in left}
    for pair in left.pop("sasl.oauthbearer.extensions", "").split(","):
        name, is_, value = pair.partition("=")
        if is_:
            given[_EXTENSION + name.strip()] = value
    return {JAAS: jaas.Login(login.module, {**login.options, **given}).to_text()}


def _java_trust(left: dict[str, str]) -> dict[str, str]:
    location, text = left.pop("ssl.ca.location", None), left.pop("ssl.ca.pem", None)
    theirs = left.get("ssl.truststore.location")
    if location is not None and (location == "probe" or stores.is_folder(location)):
        raise _refuse(f"ssl.ca.location={location}", _SPARK, "Name a PEM file.")
    if text is not None:
        return {**_store("truststore", stores.PEM, left), "ssl.truststore.certificates": text}
    if location is not None:
        return {**_store("truststore", stores.PEM, left), "ssl.truststore.location": location}
    if "ssl.truststore.certificates" in left:
        return _store("truststore", stores.PEM, left)
    if theirs is None:
        return {}
    return _store("truststore", stores.store_type(theirs, "ssl.truststore.location"), left)


def _java_identity(left: dict[str, str]) -> dict[str, str]:
    """A key and its certificates; a key in a form that Java cannot read is converted in memory."""
    parts = {}
    for ours, java in (("key", "key"), ("certificate", "certificate.chain")):
        file, text = left.pop(f"ssl.{ours}.location", None), left.pop(f"ssl.{ours}.pem", None)
        if file is not None:
            text = stores.read_text(file, f"ssl.{ours}.location")
        if text is not None:
            parts[f"ssl.keystore.{java}"] = text
    key = parts.get(_KEY, left.get(_KEY))
    if key is not None:
        return {**_store("keystore", stores.PEM, left), **parts, **_readable_key(key, left)}
    location = left.get(_KEYSTORE)
    if location is None:
        return {}
    kind = stores.store_type(location, _KEYSTORE)
    typed = _store("keystore", kind, left)
    if kind != stores.PEM:
        return typed
    text = stores.read_text(location, _KEYSTORE)
    if not (changed := _readable_key(text, left)):
        return typed
    del left[_KEYSTORE]
    chain = "\n".join(stores.list_blocks(text, "CERTIFICATE"))
    return {**typed, _CHAIN: chain, **changed}


def _readable_key(text: str, left: dict[str, str]) -> dict[str, str]:
    """The key of a PEM text, if Java needs it in another form; nothing if it does not."""
    key = stores.convert_for_java(text, left.get("ssl.key.password"))
    if key is None:
        return {}
    left.pop("ssl.key.password", None)
    return {_KEY: key}


def _store(role: str, kind: str, left: dict[str, str]) -> dict[str, str]:
    """The type of a store by its content, as for our own client: Java goes by what is written.

    It reads JKS and PKCS12 by either name, but refuses the password of a PEM file.
    """
    declared = left.get(f"ssl.{role}.type", "").upper()
    if kind == stores.PEM:
        left.pop(f"ssl.{role}.password", None)
    elif declared != stores.PEM:
        return {}
    return {f"ssl.{role}.type": kind}


def _refuse(name: str, side: str, hint: str = "") -> UsageError:
    return UsageError(
        f"The Kafka property {name} cannot be given to {side}.",
        hint
        or "Remove it from your Kafka configuration; docs/production/kafka.md lists what can be "
        "set.",
    )
