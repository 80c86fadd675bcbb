# SPDX-License-Identifier: Apache-2.0
"""How the documentation site is made: `make docs` writes it to build/docs. Nothing is fetched from the network."""

import os
import sys
from pathlib import Path

# From the Python sources: compiled functions do not tell their parameters.
os.environ["PENSTOCK_PURE"] = "1"
sys.path.insert(0, str(Path(__file__).parent / "_site"))

from penstock import __version__

project = "Penstock"
author = "The Penstock authors"
version = release = __version__
html_title = f"Penstock {release}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "command_help",
    "docstrings",
    "drawings",
    "links_to_the_top",
    "state_diagrams",
]
exclude_patterns = ["_site"]

html_theme = "furo"
html_static_path = ["_site/static"]
html_css_files = ["penstock.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "tasklist"]

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
smartquotes = False  # texts of errors and code in prose stay as they are
default_role = "code"  # docstrings are written in plain text: `name` is code

nitpicky = False
suppress_warnings: list[str] = []
