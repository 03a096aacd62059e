"""Encryption of users' secrets in files, and of users on their way from a broker to other processes.

AES-256-GCM with a random nonce. The key of an operator is any text, so it is stretched with scrypt; inner keys are
random already.
"""

import hashlib
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from latermq.errors import ConfigError, LaterMQError

RandomBytes = Callable[[int], bytes]

KEY_BYTES = 32
NONCE_BYTES = 12
SALT_BYTES = 16
MIN_KEY_CHARS = 16
# 16 MiB of memory and about 50 ms, once per start.
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 1 << 14, 8, 1


class Unsealable(LaterMQError):
    """The data was sealed with another key, or changed afterwards."""


class SecretBox:
    """Seals and opens small pieces of data with one key."""

    def __init__(self, key: bytes, random_bytes: RandomBytes) -> None:
        self._cipher = AESGCM(key)
        self._random_bytes = random_bytes

    def seal(self, data: bytes, context: bytes) -> bytes:
        """Encrypt data. It can be opened only with the same context, for example the name of the user."""
        nonce = self._random_bytes(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, context)

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """Decrypt what `seal` returned."""
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
        except (InvalidTag, ValueError):
            raise Unsealable("the data was not sealed with this key, or it was changed") from None


def stretched_key(text: str, salt: bytes) -> bytes:
    """The key that belongs to an operator's text."""
    return Scrypt(salt=salt, length=KEY_BYTES, n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P).derive(text.encode())


def inner_key(secret: str) -> bytes:
    """The key for users on their way between LaterMQ's own processes."""
    return hashlib.sha256(b"latermq users\0" + secret.encode()).digest()


def check_key_text(text: str) -> str:
    """Return the text of an operator's key without white space around it."""
    text = text.strip()
    if len(text) < MIN_KEY_CHARS:
        raise ConfigError(
            f"the key for the users' secrets has {len(text)} characters, it must have at least {MIN_KEY_CHARS}",
            hint="Create one: openssl rand -hex 32",
        )
    return text
