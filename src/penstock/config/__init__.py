# SPDX-License-Identifier: Apache-2.0
"""The options of a client: one table of what there is, and the way from a user's values to checked ones."""
