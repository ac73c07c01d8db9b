"""The secret that ranks of one job share, and the proof of knowing it."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from gin.errors import BootstrapError
from gin.rendezvous.frames import Header, canonical

__all__ = ["fresh", "job_secret", "key_file", "nonce", "prove", "verify"]

_KEY_BYTES = 32


def fresh() -> str:
    """A new secret, as text that fits a variable."""
    return secrets.token_hex(_KEY_BYTES)


def nonce() -> str:
    return secrets.token_hex(16)


def prove(secret: bytes, role: str, server_nonce: str, hello: Header) -> str:
    """The proof that `role` (client or server) knows the secret, bound to both nonces (the client's is in its hello)
    and to everything the hello says."""
    text = canonical({name: value for name, value in hello.items() if name != "proof"})
    message = b"\0".join((b"gin rendezvous", role.encode(), server_nonce.encode(), text))
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def verify(proof: object, secret: bytes, role: str, server_nonce: str, hello: Header) -> bool:
    expected = prove(secret, role, server_nonce, hello)
    return isinstance(proof, str) and proof.isascii() and hmac.compare_digest(proof, expected)


def job_secret(configured: str | None, *, same_user_proved: bool) -> bytes:
    """The job's secret: the configured one, else the user's key file, made on first use.

    With `same_user_proved` (a socket that shows the peer's user id) a file that cannot be made is not needed.
    Raises BootstrapError for a file that others can read, and for one that cannot be made.
    """
    if configured:
        return configured.encode()
    path = key_file()
    try:
        return _read_or_make(path)
    except OSError as error:
        if same_user_proved:
            return b"same user"
        raise BootstrapError(
            f"the key file {path} cannot be used: {error.strerror or error}. Set GIN_JOB_SECRET to the same secret "
            "text on all ranks"
        ) from None


def key_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.config")) / "gin" / "key"


def _read_or_make(path: Path) -> bytes:
    try:
        return _read(path)
    except FileNotFoundError:
        _make(path)
        return _read(path)


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise BootstrapError(
                f"the key file {path} must be a file of yours that only you can read (chmod 600), or remove it and a "
                "new one is made; or set GIN_JOB_SECRET"
            )
        key = os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
    if len(key) < _KEY_BYTES:
        raise BootstrapError(f"the key file {path} is too short; remove it and a new one is made")
    return key


def _make(path: Path) -> None:
    """Creates the file whole or not at all, however many ranks try at once: the first link wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(descriptor, secrets.token_hex(_KEY_BYTES).encode())
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
