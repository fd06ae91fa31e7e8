"""Read the certificates and keys of PEM, PKCS12 and JKS stores, as PEM texts."""

from __future__ import annotations

import hashlib
import re
import ssl
import struct
from base64 import b64decode, encodebytes
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from io import BytesIO
from pathlib import Path

from ebbtide.errors import MissingExtraError, UsageError, first_line

PEM, PKCS12, JKS = "PEM", "PKCS12", "JKS"
_BEGIN = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,64})-----")
_END = re.compile(r"-----END ([A-Z0-9 ]{1,64})(?=-----)")  # the next one may share the dashes
_JKS = b"\xfe\xed\xfe\xed"
_PKCS8, _ENCRYPTED = "-----BEGIN PRIVATE KEY", "-----BEGIN ENCRYPTED PRIVATE KEY"
_PBES2 = bytes.fromhex("2a864886f70d01050d")
_KEY, _CERTIFICATE = 1, 2
_DIGEST = 20
_LARGEST = 16 << 20
"""The largest store; those with all authorities of the web have less than a megabyte."""
_SALT = b"Mighty Aphrodite"


@dataclass(frozen=True)
class PemIdentity:
    """A client's certificate with its chain, and its key."""

    chain: str
    key: str = field(repr=False)


def store_type(file: str, option: str) -> str:
    """What a store is, by its content: Java, too, reads a PKCS12 file that is called JKS."""
    content = _read(file, option)
    if content[:4] == _JKS:
        return JKS
    return PEM if b"-----BEGIN" in content else PKCS12


def read_trusted(file: str, password: str | None, option: str) -> str:
    """The certificates that a trust store holds."""
    content, kind = _read(file, option), store_type(file, option)
    if kind == PEM:
        certificates = list_blocks(content.decode("ascii", "replace"), "CERTIFICATE")
    elif kind == JKS:
        entries = _read_jks(content, password, file)
        certificates = [
            ssl.DER_cert_to_PEM_cert(der) for key, ders in entries if not key for der in ders
        ]
    else:
        certificates = _trusted_in_pkcs12(content, password, file)
    if not certificates:
        raise UsageError(
            f"The trust store {file} holds no certificate.", f"Check {option}: is it the key store?"
        )
    return "\n".join(text.strip() for text in certificates) + "\n"


def read_jks_identity(
    file: str, password: str | None, key_password: str | None, option: str
) -> PemIdentity:
    """The first key of a JKS store, with its certificates."""
    for key, chain in _read_jks(_read(file, option), password, file):
        if key:
            try:
                plain = _unprotect(key, key_password or password or "")
            except ValueError:
                raise UsageError(
                    f"The key in {file} cannot be opened with this password.",
                    "Check ssl.key.password in your Kafka configuration.",
                ) from None
            certificates = "".join(ssl.DER_cert_to_PEM_cert(der) for der in chain)
            return PemIdentity(certificates, _to_pem(plain, "PRIVATE KEY"))
    raise UsageError(
        f"The key store {file} holds no private key.", f"Check {option}: is it the trust store?"
    )


def convert_for_java(text: str, password: str | None) -> str | None:
    """The key of a PEM text as Java's clients read it; None if it is in such a form already.

    They read PKCS8 only, and of what is encrypted not the form (PBES2) that everybody writes now.
    """
    keys = list_blocks(text, "PRIVATE KEY")
    if not keys:
        raise UsageError(
            "The Kafka configuration names a key store without a private key.", "Add it."
        )
    key_text = normalize_pem(keys[0])
    if key_text.startswith(_PKCS8):
        return None
    with suppress(ValueError):  # what it is will be said below
        der = b64decode("".join(key_text.splitlines()[1:-1]))
        if key_text.startswith(_ENCRYPTED) and _PBES2 not in der:
            return None
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization as s
    except ImportError:
        raise MissingExtraError.for_extra("tls", "A private key in this form") from None
    try:
        key = s.load_pem_private_key(key_text.encode(), password.encode() if password else None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise UsageError(
            "The private key is damaged, or cannot be opened with this password.",
            "Check ssl.key.password in your Kafka configuration.",
        ) from None
    form = (s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    return key.private_bytes(*form).decode()


def read_end(text: str) -> datetime | None:
    """When the first certificate of a PEM text ends; None without one, or without cryptography."""
    blocks = list_blocks(text, "CERTIFICATE")
    with suppress(ImportError, ValueError):
        from cryptography import x509

        if blocks:
            return x509.load_pem_x509_certificate(blocks[0].encode()).not_valid_after_utc
    return None


def read_pkcs12_end(file: str, password: str | None) -> datetime | None:
    """When the certificate of a PKCS12 key store ends, as `read_end`."""
    with suppress(ImportError, ValueError):
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

        content = _read(file, "ssl.keystore.location")
        store = load_pkcs12(content, password.encode() if password else None)
        return store.cert.certificate.not_valid_after_utc if store.cert else None
    return None


def list_blocks(text: str, label: str) -> list[str]:
    """The blocks of a PEM text whose label ends so."""
    return [block for block, its_label, _ in _split_pem(text) if its_label.endswith(label)]


def _split_pem(text: str) -> Iterator[tuple[str, str, str]]:
    """The blocks of a PEM text: whole, their label, and what is between begin and end."""
    at, last_ends = 0, {end[1]: end.start() for end in _END.finditer(text)}
    while begin := _BEGIN.search(text, at):
        if last_ends.get(begin[1], -1) <= begin.end():  # it has no end: none is looked for
            at = begin.end() - len("-----")
            continue
        end_line = f"-----END {begin[1]}-----"
        end = text.index(end_line, begin.end() + 1)
        at = end + len(end_line)
        yield text[begin.start() : at], begin[1], text[begin.end() : end]


def normalize_pem(text: str) -> str:
    r"""A PEM text with its lines, which a properties file may have joined by blanks.

    >>> normalize_pem("-----BEGIN CERTIFICATE----- MIIF AAAA -----END CERTIFICATE-----")
    '-----BEGIN CERTIFICATE-----\nMIIF\nAAAA\n-----END CERTIFICATE-----\n'
    """
    blocks = list(_split_pem(text))
    if not blocks or all("\n" in block for block, _, _ in blocks):
        return text
    return "".join(
        "\n".join((f"-----BEGIN {label}-----", *content.split(), f"-----END {label}-----\n"))
        for _, label, content in blocks
    )


def read_text(file: str, option: str) -> str:
    """A PEM file."""
    return _read(file, option).decode("ascii", "replace")


def is_folder(path: str) -> bool:
    """Whether a path is a folder's."""
    return Path(path).is_dir()


def _read(file: str, option: str) -> bytes:
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST:,} bytes")
    except (OSError, ValueError) as error:  # no path has a NUL
        raise UsageError(
            f"The Kafka property {option} names {file}, which cannot be read: "
            f"{first_line(getattr(error, 'strerror', None) or error)}.",
            "Correct the path in your Kafka configuration.",
        ) from None
    return content


def _trusted_in_pkcs12(content: bytes, password: str | None, file: str) -> list[str]:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import Encoding
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ImportError:
        raise MissingExtraError.for_extra("tls", f"The PKCS12 trust store {file}") from None
    try:
        store = load_pkcs12(content, password.encode() if password else None)
    except (ValueError, UnsupportedAlgorithm):
        raise _cannot_open(file) from None
    return [one.certificate.public_bytes(Encoding.PEM).decode() for one in store.additional_certs]


def _cannot_open(file: str) -> UsageError:
    return UsageError(
        f"{file} is neither PEM, PKCS12 nor JKS, or its password is wrong.",
        "Check the location and the password of the store in your Kafka configuration.",
    )


# --- JKS: a header, entries, and a keyed digest -----------------------------------------------


def _read_jks(content: bytes, password: str | None, file: str) -> list[tuple[bytes, list[bytes]]]:
    """The entries of a store: a protected key (empty if it has none), and certificates."""
    body, digest = content[:-_DIGEST], content[-_DIGEST:]
    if password is not None:
        keyed = password.encode("utf-16-be") + _SALT + body
        if hashlib.sha1(keyed, usedforsecurity=False).digest() != digest:
            raise _cannot_open(file)
    try:
        return list(_jks_entries(BytesIO(body)))
    except (struct.error, ValueError):
        raise _cannot_open(file) from None


def _jks_entries(stream: BytesIO) -> Iterator[tuple[bytes, list[bytes]]]:
    _magic, version, count = struct.unpack(">III", stream.read(12))
    for _ in range(count):
        (tag,) = struct.unpack(">I", stream.read(4))
        _sized(stream, ">H")  # its alias
        stream.read(8)  # when it was made
        key = _sized(stream, ">I") if tag == _KEY else b""
        certificates = []
        chain = struct.unpack(">I", stream.read(4))[0] if tag == _KEY else 1
        if tag not in (_KEY, _CERTIFICATE) or chain > 100:
            raise ValueError("an entry of another kind")
        for _ in range(chain):
            if version == 2:
                _sized(stream, ">H")  # "X.509"
            certificates.append(_sized(stream, ">I"))
        yield key, certificates


def _sized(stream: BytesIO, size: str) -> bytes:
    (length,) = struct.unpack(size, stream.read(struct.calcsize(size)))
    content = stream.read(length)
    if len(content) != length:
        raise ValueError("cut short")
    return content


def _unprotect(key: bytes, password: str) -> bytes:
    """A key without Sun's protection: a stream of digests of the password and a salt."""
    after_algorithm, _ = _der(_der(key, 0x30)[1], 0x30)
    content = _der(after_algorithm, 0x04)[1]
    salt, hidden, check = content[:_DIGEST], content[_DIGEST:-_DIGEST], content[-_DIGEST:]
    secret, stream, last = password.encode("utf-16-be"), b"", salt
    while len(stream) < len(hidden):
        last = hashlib.sha1(secret + last, usedforsecurity=False).digest()
        stream += last
    plain = bytes(a ^ b for a, b in zip(hidden, stream, strict=False))
    if hashlib.sha1(secret + plain, usedforsecurity=False).digest() != check:
        raise ValueError("another password")
    return plain


def _der(content: bytes, tag: int) -> tuple[bytes, bytes]:
    """What comes after the first DER element, and its content."""
    if len(content) < 2 or content[0] != tag:
        raise ValueError("not as expected")
    length, at = content[1], 2
    if length & 0x80:
        at += length & 0x7F
        length = int.from_bytes(content[2:at], "big")
    return content[at + length :], content[at : at + length]


def _to_pem(der: bytes, label: str) -> str:
    return f"-----BEGIN {label}-----\n{encodebytes(der).decode()}-----END {label}-----\n"
