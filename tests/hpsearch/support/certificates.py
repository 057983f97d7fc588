"""A certificate for servers of tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for localhost."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(["openssl", *words, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key
