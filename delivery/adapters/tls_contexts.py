"""TLS contexts, one for each combination of files: a context holds some hundred certificates and takes 20 ms."""

from __future__ import annotations

import asyncio
import ssl

import certifi

from delivery.adapters.http_way import TlsFilesUnreadable
from delivery.model import Network

_Files = tuple[str | None, str | None, str | None]


class TlsContexts:
    """Made in a thread on first use and kept. A failure is not kept: the file may be there next time."""

    def __init__(self) -> None:
        self._made: dict[_Files, ssl.SSLContext] = {}
        self._lock = asyncio.Lock()

    async def of(self, network: Network) -> ssl.SSLContext:
        """Verifying, TLS 1.2 or newer. Raises TlsFilesUnreadable."""
        files = (network.ca_file, network.client_cert_file, network.client_key_file)
        async with self._lock:
            context = self._made.get(files)
            if context is None:
                context = self._made[files] = await asyncio.to_thread(_make, *files)
        return context


def _make(ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file or _without_system_store())
    except (OSError, ValueError) as error:
        raise TlsFilesUnreadable(f"CA bundle: {type(error).__name__}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if cert_file is not None:
        try:
            # No password: OpenSSL would ask for it on the terminal.
            context.load_cert_chain(cert_file, key_file, password="")
        except (OSError, ValueError) as error:
            raise TlsFilesUnreadable(f"client certificate or key: {type(error).__name__}") from error
    return context


def _without_system_store() -> str | None:
    """The bundle for machines that have no certificate store of their own; None where there is one."""
    paths = ssl.get_default_verify_paths()
    return None if paths.cafile or paths.capath else certifi.where()
