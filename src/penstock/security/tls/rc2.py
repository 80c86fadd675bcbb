# SPDX-License-Identifier: Apache-2.0
"""Decrypts RC2 (RFC 2268), with which Java 8 and OpenSSL 1 encrypted the certificates of a store.

The package `cryptography` has it for keys of 128 bits only, and those stores have keys of 40. It protects nothing:
what is decrypted here is only looked at.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

BLOCK: Final = 8

_WORDS: Final = Struct("<4H")
_KEY_WORDS: Final = Struct("<64H")
# The digits of pi, as the RFC makes them into a permutation of all bytes.
_PI: Final = bytes.fromhex(
    "d978f9c419ddb5ed28e9fd794aa0d89dc67e37832b76538e624c6488448bfba2"
    "179a59f587b34f1361456d8d09817d32bd8f40eb86b77b0bf09521225c6b4e82"
    "54d66593ce60b21c7356c014a78cf1dc1275ca1f3bbee4d1423dd430a33cb626"
    "6fbf0eda4669075727f21d9bbc944303f811c7f690ef3ee706c3d52fc8661ed7"
    "08e8eade8052eef784aa72ac354d6a2a961ad2715a1549744b9fd05e0418a4ec"
    "c2e0416e0f51cbcc2491af50a1f47039997c3a8523b8b47afc02365b25559731"
    "2d5dfa98e38a92ae05df2910676cbac9d300e6cfe19ea82c6316013f58e289a9"
    "0d38341bab33ffb0bb480c5fb9b1cd2ec5f3db47e5a59c770aa62068fe7fc1ad"
)
# The steps of mixing after which the words are mashed, counted from the last.
_MASHED_AFTER: Final = frozenset({11, 5})
_ALL: Final = 0xFFFF


def decrypt_cbc(key: bytes, start: bytes, data: bytes) -> bytes:
    """What was encrypted with all bits of a key, in chained blocks; with its padding.

    Args:
        key: 1 to 128 bytes.
        start: the vector that the chain begins with.
        data: whole blocks.
    """
    words = _expanded(key)
    plain = bytearray()
    before = int.from_bytes(start, "big")
    for at in range(0, len(data), BLOCK):
        block = data[at : at + BLOCK]
        plain += (int.from_bytes(_decrypted(words, block), "big") ^ before).to_bytes(BLOCK, "big")
        before = int.from_bytes(block, "big")
    return bytes(plain)


def _expanded(key: bytes) -> tuple[int, ...]:
    size = len(key)
    found = bytearray(key) + bytes(128 - size)
    for at in range(size, 128):
        found[at] = _PI[(found[at - 1] + found[at - size]) & 0xFF]
    found[128 - size] = _PI[found[128 - size]]
    for at in range(127 - size, -1, -1):
        found[at] = _PI[found[at + 1] ^ found[at + size]]
    return _KEY_WORDS.unpack(found)


def _decrypted(key: tuple[int, ...], block: bytes) -> bytes:
    a, b, c, d = _WORDS.unpack(block)
    for step in range(15, -1, -1):
        k = 4 * step
        d = (d >> 5 | d << 11) & _ALL
        d = (d - key[k + 3] - (c & b) - (~c & a)) & _ALL
        c = (c >> 3 | c << 13) & _ALL
        c = (c - key[k + 2] - (b & a) - (~b & d)) & _ALL
        b = (b >> 2 | b << 14) & _ALL
        b = (b - key[k + 1] - (a & d) - (~a & c)) & _ALL
        a = (a >> 1 | a << 15) & _ALL
        a = (a - key[k] - (d & c) - (~d & b)) & _ALL
        if step in _MASHED_AFTER:
            d = (d - key[c & 63]) & _ALL
            c = (c - key[b & 63]) & _ALL
            b = (b - key[a & 63]) & _ALL
            a = (a - key[d & 63]) & _ALL
    return _WORDS.pack(a, b, c, d)
