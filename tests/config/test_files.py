# SPDX-License-Identifier: Apache-2.0
"""Files that options name are read without waiting, and in bounds."""

from __future__ import annotations

import os
import stat

import pytest

from penstock.config.files import UnreadableError, read_file


def test_a_file_of_the_most_bytes_there_may_be(tmp_path):
    place = tmp_path / "f"
    place.write_bytes(b"12345")
    assert read_file(str(place), 5) == b"12345"
    with pytest.raises(UnreadableError, match=r"^has more than 4 bytes"):
        read_file(str(place), 4)


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(UnreadableError, match=r"^is not a file$"):
            read_file(str(path), 100)


def test_what_is_not_there(tmp_path):
    with pytest.raises(UnreadableError, match=r"^cannot be read: No such file or directory$"):
        read_file(str(tmp_path / "none"), 100)
    with pytest.raises(UnreadableError, match=r"^cannot be read: no such path can be$"):
        read_file("a\0b", 100)


def test_a_file_of_somebody_else_names_the_user(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnreadableError, match=rf"^cannot be read by user {os.geteuid()}: Permission denied$"):
        read_file(str(tmp_path / "f"), 100)


def test_a_link_is_followed_and_no_file_stays_open(tmp_path):
    place = tmp_path / "f"
    place.write_bytes(b"x")
    (tmp_path / "link").symlink_to(place)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert read_file(str(tmp_path / "link"), 10) == b"x"
        with pytest.raises(UnreadableError):
            read_file(str(tmp_path), 10)
    assert len(os.listdir("/proc/self/fd")) == before
    assert stat.S_ISREG(place.stat().st_mode)
