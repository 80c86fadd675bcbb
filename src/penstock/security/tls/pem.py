# SPDX-License-Identifier: Apache-2.0
"""PEM: blocks of base64 between BEGIN and END, in files and in options.

People paste PEM into options, where newlines turn into blanks, or into a backslash and an n. OpenSSL takes neither, so
blocks are found here, decoded, and written anew. Text around the blocks and `Name: value` lines in them are skipped.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.security.tls import der
from penstock.security.tls.material import MOST_CERTIFICATES, Certificate, Identity, StoreError, pem_of

_BEGIN: Final = "-----BEGIN "
_DASHES: Final = "-----"
_MOST_LABEL: Final = 60
# An encrypted key of the old kind has two.
_MOST_HEADERS: Final = 10

_CERTIFICATES: Final = frozenset({"CERTIFICATE", "X509 CERTIFICATE"})
_KEYS: Final = frozenset(
    {"PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY"}
)
_LIST: Final = "X509 CRL"
_USED: Final = _CERTIFICATES | _KEYS | {_LIST}


class Block(NamedTuple):
    """A block of PEM.

    Attributes:
        label: what it is: "CERTIFICATE".
        place: where it is.
        data: what was between, decoded; empty where the label is not one of those that are used here.
        headers: lines before it that OpenSSL needs to decrypt an old kind of key.
    """

    label: str
    place: str
    data: bytes
    headers: tuple[str, ...]

    @property
    def encrypted(self) -> bool:
        """Whether a password is needed."""
        return self.label == "ENCRYPTED PRIVATE KEY" or any("ENCRYPTED" in line for line in self.headers)

    @property
    def text(self) -> str:
        """The block, in lines as OpenSSL wants them."""
        body = pem_of(self.label, binascii.b2a_base64(self.data, newline=False).decode())
        if not self.headers:
            return body
        first, rest = body.split("\n", 1)
        return "\n".join((first, *self.headers, "", rest))

    def __repr__(self) -> str:
        return f"<Block {self.label}, {self.place}>"


def looks_like_pem(data: bytes) -> bool:
    """Whether there is a block of PEM in it."""
    return _BEGIN.encode() in data


def blocks_of(text: str) -> list[Block]:
    """All blocks.

    Raises:
        StoreError: a block has no end, or is not base64.
    """
    if "\\n" in text:
        text = text.replace("\\r", "").replace("\\n", "\n")  # neither is part of base64
    found: list[Block] = []
    lines, counted_to = 1, 0
    at = text.find(_BEGIN)
    while at >= 0:
        if len(found) == MOST_CERTIFICATES:
            raise StoreError(f"there are more than {MOST_CERTIFICATES} blocks in it")
        lines += text.count("\n", counted_to, at)
        counted_to = at
        place = f"block {len(found) + 1} (line {lines})"
        stop = text.find(_DASHES, at + len(_BEGIN), at + len(_BEGIN) + _MOST_LABEL + len(_DASHES))
        if stop < 0:
            raise StoreError(f"{place} has no '-----' behind its BEGIN")
        label = text[at + len(_BEGIN) : stop]
        end = text.find(_DASHES, stop + len(_DASHES))
        mark = f"-----END {label}-----"
        if end < 0 or not text.startswith(mark, end):
            raise StoreError(f"{place}, a {label}, has no '{mark}'; is it cut?")
        found.append(_block(label, place, text[stop + len(_DASHES) : end]))
        at = text.find(_BEGIN, end + len(mark))
    return found


def _block(label: str, place: str, body: str) -> Block:
    if label not in _USED:
        return Block(label, place, b"", ())
    headers, base64 = _split(body)
    if len(headers) > _MOST_HEADERS:
        raise StoreError(f"{place}, a {label}, has more than {_MOST_HEADERS} headers")
    needed = _needed(headers)
    try:
        data = binascii.a2b_base64("".join(base64), strict_mode=True)
    except (binascii.Error, ValueError):
        raise StoreError(f"{place}, a {label}, is not base64") from None
    if not needed and not der.is_sequence(data):
        raise StoreError(f"{place}, a {label}, is not whole, or not what it says")
    return Block(label, place, data, needed)


def _split(body: str) -> tuple[list[str], list[str]]:
    """The `Name: value` lines of a body, and the pieces of base64."""
    headers: list[str] = []
    if "\n" in body.strip() or ":" not in body:
        pieces: list[str] = []
        for line in body.split("\n"):
            if ":" in line:
                headers.append(line.strip())
            else:
                pieces += line.split()
        return headers, pieces
    # All in one line: a name ends with a colon, and its value is the next word.
    words = body.split()
    at = 0
    while at + 1 < len(words) and words[at].endswith(":") and len(headers) <= _MOST_HEADERS:
        headers.append(f"{words[at]} {words[at + 1]}")
        at += 2
    return headers, words[at:]


def _needed(headers: list[str]) -> tuple[str, ...]:
    return tuple(line for line in headers if line.startswith(("Proc-Type:", "DEK-Info:")))


# ------------------------------------------------------------------------------------------ what is wanted of them


def certificates(blocks: Sequence[Block]) -> list[Certificate]:
    """All certificates, in their order.

    Raises:
        StoreError: there is none.
    """
    found = [Certificate(block.place, block.data) for block in blocks if block.label in _CERTIFICATES]
    if not found:
        raise StoreError(f"there is no CERTIFICATE in it{_instead(blocks)}")
    return found


def identity(key_blocks: Sequence[Block], chain_blocks: Sequence[Block], password: str | None) -> Identity:
    """The one private key, and the certificates.

    Raises:
        StoreError: there is no key, more than one, no certificate, an encrypted key without a password, or one that is
            not encrypted with one.
    """
    keys = [block for block in key_blocks if block.label in _KEYS]
    if not keys:
        raise StoreError(f"there is no PRIVATE KEY in it{_instead(key_blocks)}")
    if len(keys) > 1:
        raise StoreError(f"there are {len(keys)} private keys in it, the second in {keys[1].place}")
    key = keys[0]
    if key.encrypted:
        if password is None:
            raise StoreError(
                f"the private key in {key.place} is encrypted, and no password is given", "key password"
            )
        if not key.headers:
            der.check_rounds(key.data)
    elif password is not None:
        raise StoreError(
            f"the private key in {key.place} is not encrypted, so it has no password: leave it out",
            "key password",
        )
    return Identity(key.text, password, certificates(chain_blocks))


def revocation_lists(blocks: Sequence[Block]) -> str:
    """All revocation lists as one text.

    Raises:
        StoreError: there is none.
    """
    lists = [block.text for block in blocks if block.label == _LIST]
    if not lists:
        raise StoreError(f"there is no {_LIST} in it{_instead(blocks)}")
    return "".join(lists)


def _instead(blocks: Sequence[Block]) -> str:
    labels = sorted({block.label for block in blocks})
    return f", only {', '.join(labels[:5])}" if labels else ", and no other block of PEM"
