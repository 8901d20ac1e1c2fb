"""Signatures of artifacts: Ed25519 (RFC 8032), keys in PEM as openssl writes them.

    openssl genpkey -algorithm ed25519 -out private.pem
    openssl pkey -in private.pem -pubout -out public.pem

Who holds only the public key cannot sign, which a shared secret (HMAC) does not give. The library `cryptography` does
the arithmetic; it is imported where somebody gives a key, and comes with `pip install 'renorm[signing]'`.
"""

from __future__ import annotations

import os
from typing import Any

from renorm.core.errors import InvalidArtifact, InvalidInput
from renorm.core.files import name_of

BYTES = 64

Key = str | os.PathLike[str] | bytes
"""A file in PEM, or its content."""


def sign(message: bytes, key: Key) -> bytes:
    """The signature of a message. Raises InvalidInput for what is no private key of Ed25519."""
    return _loaded(key, private=True).sign(message)


def check(message: bytes, signature: bytes, key: Key, path: str) -> None:
    """Raises InvalidArtifact, about `path`, unless the owner of the public `key` signed the message; InvalidInput for
    what is no such key."""
    public = _loaded(key, private=False)
    if not any(signature):
        raise InvalidArtifact(f"{path} is not signed", ["a key was given: only what its owner signed is loaded"])
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(signature, message)
    except InvalidSignature as error:
        raise InvalidArtifact(f"{path} was not signed with the key that belongs to the one given") from error


def _loaded(key: Key, private: bool) -> Any:
    kind = "private" if private else "public"
    what = "the key" if isinstance(key, bytes) else f"the key {key}"
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise InvalidInput("signatures need the library cryptography", do="pip install 'renorm[signing]'") from error
    try:
        if not isinstance(key, bytes):
            with open(name_of(key), "rb") as file:
                key = file.read()
        if private:
            found: Any = serialization.load_pem_private_key(key, None)
        else:
            found = serialization.load_pem_public_key(key)
    except OSError as error:
        raise InvalidInput(f"{what} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a password
        raise InvalidInput(f"{what} is not a {kind} key in PEM", [str(error)]) from error
    expected = ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey
    if not isinstance(found, expected):
        raise InvalidInput(f"{what} is {type(found).__name__}, expected a {kind} key of Ed25519")
    return found
