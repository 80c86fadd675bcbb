# SPDX-License-Identifier: Apache-2.0
"""Builds the compiled twins of the *_cy.py modules; everything else about the package is in pyproject.toml.

The modules are plain Python that Cython can compile, so the package works without a compiler, only slower. Switches:

    PENSTOCK_REQUIRE_EXT=1   a failure to build the extensions is an error (release builds, the compiled test run)
    PENSTOCK_DISABLE_EXT=1   do not build them
    PENSTOCK_OPTIMISE=0      do not optimise them: a quick build that is only tried (tools/check_wheel.py)
    PENSTOCK_SANITIZE=1      build them with gcc's address sanitizer (tools/sanitized.py)
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
SOURCE = Path("src")
C_FOLDER = "build/cython"  # generated C stays out of the source tree
# Some thirty modules of a few seconds each. Where processes do not begin as copies of this one, one after another.
JOBS = os.cpu_count() or 1 if sys.platform == "linux" else 1


def is_set(name, default=""):
    return os.environ.get(name, default).strip().lower() not in ("", "0", "no", "false")


REQUIRED = is_set("PENSTOCK_REQUIRE_EXT")
DISABLED = is_set("PENSTOCK_DISABLE_EXT")
OPTIMISED = is_set("PENSTOCK_OPTIMISE", "1")
SANITIZED = is_set("PENSTOCK_SANITIZE")


def hot_sources():
    """Every *_cy.py of the package, relative to this file; a test compares the list with the one the package has."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / SOURCE).rglob("*_cy.py"))


def module_name(source):
    return ".".join(source.relative_to(SOURCE).with_suffix("").parts)


def say(message):
    print(f"penstock: {message}", file=sys.stderr)


def extensions():
    """The extensions to build; none when that is switched off or Cython is missing."""
    if DISABLED:
        if REQUIRED:
            raise SystemExit("penstock: PENSTOCK_REQUIRE_EXT and PENSTOCK_DISABLE_EXT contradict each other")
        say("PENSTOCK_DISABLE_EXT is set: building without compiled modules")
        return []
    try:
        from Cython.Build import cythonize
    except ImportError as error:
        if REQUIRED:
            raise
        say(f"no Cython ({error}): building without compiled modules; it works the same, but slower")
        return []
    # Debug information, which Python's own flags ask for, takes a quarter of the time and most of the disk space.
    optimise = [] if sys.platform == "win32" else ["-g0", "-O3" if OPTIMISED else "-O0"]
    link = []
    if SANITIZED:
        link = ["-fsanitize=address"]
        optimise = ["-O1", "-g1", "-fno-omit-frame-pointer", *link]
    return cythonize(
        [
            Extension(module_name(path), [str(path)], extra_compile_args=optimise, extra_link_args=link)
            for path in hot_sources()
        ],
        build_dir=C_FOLDER,
        compiler_directives={"language_level": "3"},
        nthreads=JOBS,
    )


class OptionalBuildExt(build_ext):
    """Builds all extensions or none: a half-compiled package would be hard to reason about."""

    def finalize_options(self):
        super().finalize_options()
        if self.parallel is None:
            self.parallel = JOBS

    def run(self):
        try:
            super().run()
            for path in self._outputs():
                path.touch()  # also what needed no compiling: `_compiled.up_to_date` compares with the newest source
        except Exception as error:  # compilers fail in many ways, and any of them means: no extensions
            if REQUIRED:
                raise
            self._remove_outputs()
            self.extensions = []
            what = type(error).__name__
            say(f"the compiled modules could not be built ({what}); the package works the same, but slower")
            say("to see the compiler's messages: PENSTOCK_REQUIRE_EXT=1 pip install -v .")

    def _remove_outputs(self):
        for path in self._outputs():
            path.unlink(missing_ok=True)

    def _outputs(self):
        folder = SOURCE if self.inplace else Path(self.build_lib)
        names = [self.get_ext_fullname(extension.name) for extension in self.extensions]
        return [folder / self.get_ext_filename(name) for name in names]


if __name__ == "__main__":
    os.chdir(ROOT)
    setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuildExt})
