# SPDX-License-Identifier: Apache-2.0
"""Record batches as bytes: how they are written, compressed, measured and read. Knows no socket, thread or clock."""
