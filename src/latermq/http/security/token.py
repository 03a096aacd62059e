"""The configured token, and the paths that need no credentials."""

import hashlib
import hmac

from latermq.http.security.roles import Identity, Role

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
LOGIN_PATH = "/login"


class SharedToken:
    """Everybody who knows the configured token, which makes an administrator."""

    def __init__(self, token: str) -> None:
        # Digests have equal lengths, so the comparison takes the same time whatever is sent.
        self._digest = hashlib.sha256(token.encode()).digest()

    def identify(self, secret: str) -> Identity | None:
        """Return whose secret this is, or None."""
        digest = hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
        return Identity("admin", Role.ADMIN) if hmac.compare_digest(digest, self._digest) else None
