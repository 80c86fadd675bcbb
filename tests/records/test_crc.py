# SPDX-License-Identifier: Apache-2.0
"""The checksum's function is found with as little as possible, and found in any case."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.records.crc import crc32c

CHECK = b"123456789"
CHECK_VALUE = 0xE3069283  # what every CRC-32C gives for these digits


def test_it_is_the_right_checksum_and_goes_on_from_another() -> None:
    assert crc32c(CHECK) == CHECK_VALUE
    assert crc32c(CHECK[4:], crc32c(CHECK[:4])) == CHECK_VALUE
    assert crc32c(memoryview(CHECK), gil_release_mode=0) == CHECK_VALUE


def in_a_new_process(code: str, *first_on_the_path: Path) -> str:
    path = "".join(f"sys.path.insert(0, {str(folder)!r})\n" for folder in first_on_the_path)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{path}{code}"], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_the_rest_of_the_package_is_not_imported_and_can_be() -> None:
    code = (
        "from penstock.records.crc import crc32c\n"
        "early = 'crc32c' in sys.modules\n"
        "import crc32c as package\n"
        f"print(early, crc32c({CHECK!r}) == package.crc32c({CHECK!r}) == {CHECK_VALUE})"
    )
    assert in_a_new_process(code) == "False True"


FUNCTION = "def crc32c(data, start=0):\n    return 7\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "files",
    [
        {"crc32c.py": FUNCTION},
        {"crc32c/__init__.py": FUNCTION},
        {"crc32c/__init__.py": FUNCTION, "crc32c/_crc32c.py": ""},
        {"crc32c/__init__.py": "", "crc32c/_crc32c.py": FUNCTION},
    ],
    ids=["one module", "one package", "elsewhere in the package", "as it is today"],
)
def test_a_package_that_is_laid_out_in_another_way(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert in_a_new_process("from penstock.records.crc import crc32c\nprint(crc32c(b''))", tmp_path) == "7"
