"""Java itself reads the trust store that we write."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ebbtide.runtime.java import find_java
from ebbtide.runtime.truststore import PASSWORD, to_trust_store, trusted_certificates


def test_java_reads_it(tmp_path: Path) -> None:
    certificates = trusted_certificates()
    assert certificates, "this machine trusts nobody"
    store = tmp_path / "trusted.jks"
    store.write_bytes(to_trust_store(certificates))
    keytool = [str(find_java().executable), "-m", "java.base/sun.security.tools.keytool.Main"]
    listed = subprocess.run(
        [*keytool, "-list", "-keystore", str(store), "-storepass", PASSWORD],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert listed.count("trustedCertEntry") == len(certificates)
