"""Write the certificates that Python trusts to a Java trust store.

The bundled Java trusts only the certificates that it came with, so it cannot pass a company's proxy
that pip passes. Java reads no PEM files and the bundled runtime has no keytool, but the format is
only a few bytes around each certificate.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PASSWORD = "changeit"
"""Java's default for public certificates: it detects damage and protects no secret."""
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_MAGIC, _VERSION, _CERTIFICATE = 0xFEEDFEED, 2, 2
_SALT = b"Mighty Aphrodite"


def trusted_certificates(environ: Mapping[str, str] = os.environ) -> list[bytes]:
    """The certificates (DER) that Python, pip and requests trust here, each once."""
    certificates: dict[bytes, None] = {}
    for file in _certificate_files(environ):
        try:
            text = file.read_text("ascii", errors="replace")
        except OSError:
            continue
        certificates |= dict.fromkeys(ssl.PEM_cert_to_DER_cert(pem) for pem in _PEM.findall(text))
    return list(certificates)


def _certificate_files(environ: Mapping[str, str]) -> Iterator[Path]:
    for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
        if environ.get(name):
            yield Path(environ[name])
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        yield Path(paths.cafile)
    if paths.capath:
        yield from sorted(Path(paths.capath).iterdir())


def to_trust_store(certificates: Iterable[bytes]) -> bytes:
    """Certificates as a Java key store (JKS): a header, the entries, and a keyed digest.

    >>> to_trust_store([])[:12].hex(" ", 4)
    'feedfeed 00000002 00000000'
    """
    entries = [
        struct.pack(">I", _CERTIFICATE)
        + _utf(f"certificate-{number}")
        + struct.pack(">q", 0)
        + _utf("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
        for number, certificate in enumerate(certificates)
    ]
    content = struct.pack(">III", _MAGIC, _VERSION, len(entries)) + b"".join(entries)
    keyed = PASSWORD.encode("utf-16-be") + _SALT + content
    return content + hashlib.sha1(keyed, usedforsecurity=False).digest()


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
