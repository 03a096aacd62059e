"""The TLS contexts of servers."""

import ssl
from collections.abc import Sequence

HTTP2 = ("h2",)


def server_context(
    certificate: str, key: str, *, client_ca: str = "", requires_client: bool = False, protocols: Sequence[str] = HTTP2
) -> ssl.SSLContext:
    """Return the context for a certificate chain and its key, as paths of PEM files.

    With `client_ca`, a client may have a certificate, which must be from that authority. `protocols` are offered by
    ALPN; none if empty. Raises OSError or ssl.SSLError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A resumed session would skip the check of the client's certificate, and connections here are long-lived.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    if protocols:
        context.set_alpn_protocols(list(protocols))
    # A key with a passphrase would be asked for on the terminal, and stop the server.
    context.load_cert_chain(certificate, key, password=_no_password)
    if client_ca:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if requires_client else ssl.CERT_OPTIONAL
    return context


def reason_of(error: OSError) -> str:
    """What is wrong, for people: the texts of OpenSSL have the position in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", None)  # set by OpenSSL only
        return str(reason or error.strerror or error).replace("_", " ").lower()
    return error.strerror or str(error)


def _no_password() -> str:
    raise ssl.SSLError(0, "the key needs a password")
