# SPDX-License-Identifier: Apache-2.0
"""A producer without a cluster, for tests of programs that send."""
