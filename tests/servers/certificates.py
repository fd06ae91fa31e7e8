"""Certificates for tests: an authority, and what it signs, as PEM, PKCS12 and JKS files."""

from __future__ import annotations

import ipaddress
import subprocess
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from ebbtide.runtime.java import find_java

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        """The key as PKCS8, the only form that Kafka reads."""
        form = PrivateFormat.PKCS8
        return self.key.private_bytes(Encoding.PEM, form, _encryption(password)).decode()

    def to_pem(self, password: str | None = None) -> str:
        """Key and certificate, as Kafka reads them from one file."""
        return self.key_pem(password) + self.certificate_pem

    def to_pkcs12(self, password: str) -> bytes:
        """A key store."""
        return pkcs12.serialize_key_and_certificates(
            b"ebbtide", self.key, self.certificate, None, _encryption(password)
        )

    def to_pkcs12_truststore(self, password: str) -> bytes:
        """A store that trusts this certificate, marked as Java wants it."""
        trusted = pkcs12.PKCS12Certificate(self.certificate, b"authority")
        return pkcs12.serialize_java_truststore([trusted], _encryption(password))

    def sign(self, name: str, *, hosts: tuple[str, ...] = (), expired: bool = False) -> Identity:
        """Another identity that this one vouches for."""
        return _sign(name, self, hosts=hosts, expired=expired)


def make_authority(name: str = "Ebbtide test authority") -> Identity:
    """An authority of its own that nobody trusts yet."""
    return _sign(name, None)


def to_jks(store: Path, jks: Path, password: str) -> None:
    """A PKCS12 store as JKS, by Java's own keytool."""
    keytool = [str(find_java().executable), "-m", "java.base/sun.security.tools.keytool.Main"]
    passwords = ("-srcstorepass", password, "-deststorepass", password)
    files = ("-srckeystore", str(store), "-destkeystore", str(jks))
    subprocess.run(
        [*keytool, "-importkeystore", *files, *passwords, "-deststoretype", "JKS", "-noprompt"],
        capture_output=True,
        check=True,
    )


def _sign(
    name: str, issuer: Identity | None, *, hosts: tuple[str, ...] = (), expired: bool = False
) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 30 * DAY)
        .not_valid_after(now - DAY if expired else now + 30 * DAY)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return Identity(builder.sign(issuer.key if issuer else key, hashes.SHA256()), key)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _encryption(password: str | None) -> KeySerializationEncryption:
    return BestAvailableEncryption(password.encode()) if password else NoEncryption()
