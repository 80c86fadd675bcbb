# SPDX-License-Identifier: Apache-2.0
"""The command line. Each command is a module with `add_parser(subparsers)`; `main` joins them."""
