"""Files that settings name. Their paths are never shown: a secret may have been put where its file belongs."""

from __future__ import annotations

import dataclasses
import ssl

LARGEST = 64 * 1_048_576
"""Bytes; a file of tenants with thousands of endpoints has a few MiB, and /dev/zero has no end."""


def read_text(path: str) -> str:
    """The text of a file, without the line end that editors and orchestrators add. Raises ValueError, saying why."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise ValueError(_why(error)) from None
    if len(content) > LARGEST:
        raise ValueError(f"the file is larger than {LARGEST:,} bytes")
    try:
        text = content.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8") from None
    if not text.strip():
        raise ValueError("the file is empty")
    return text


def _why(error: Exception) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return f"the file cannot be read ({strerror or 'no such path'})"


@dataclasses.dataclass(slots=True)
class TlsFiles:
    """Tries certificates and keys as a connection would; each combination once, as many endpoints share one."""

    _known: dict[tuple[str | None, ...], str | None] = dataclasses.field(default_factory=dict)

    def authority_fault(self, path: str) -> str | None:
        """Why the file cannot be trusted as a bundle of authorities."""
        key = ("ca", path)
        if key not in self._known:
            self._known[key] = _authority_fault(path)
        return self._known[key]

    def certificate_fault(self, certificate: str, key: str | None, password: str | None = None) -> str | None:
        """Why the certificate cannot be used with its key (None: in the same file)."""
        combination = ("certificate", certificate, key, password)
        if combination not in self._known:
            self._known[combination] = _certificate_fault(certificate, key, password)
        return self._known[combination]


def _authority_fault(path: str) -> str | None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError:
        return "expected a PEM file with certificates of authorities"
    except (OSError, ValueError) as error:
        return _why(error)
    return None


def _certificate_fault(certificate: str, key: str | None, password: str | None) -> str | None:
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password=password or "")
    except ssl.SSLError:
        return (
            "expected PEM files with a certificate and the key that belongs to it, not encrypted or with its password"
        )
    except (OSError, ValueError) as error:
        return _why(error)
    return None
