# SPDX-License-Identifier: Apache-2.0
"""Makes the bytes of every batch final, when the I/O thread takes it. Compiled if possible."""

from __future__ import annotations

from typing import Any

try:
    # Cython needs to see exactly this statement; the stand-ins serve where it is not installed.
    import cython
except ModuleNotFoundError:
    from penstock import _cython as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.penstock.producer.batch._batch_cy import Batch, BatchIdentity
else:
    from penstock.producer.batch._batch_cy import Batch, BatchIdentity

_TRANSACTIONAL_BIT = cython.declare(cython.int, 0x10)


def is_compiled() -> bool:
    """Whether this module runs as machine code."""
    return bool(cython.compiled)


@cython.cclass
class Sealing:
    """Makes the bytes of batches final; compressing them is up to whoever this is a part of.

    Args:
        codec_id: the codec's number in a batch's attributes.
    """

    def __init__(self, codec_id: cython.int) -> None:
        self._codec_id = codec_id

    def seal(self, batch: Batch, identity: BatchIdentity) -> None:
        """Make the bytes of a batch final. A retried batch keeps them; only a changed identity is stamped anew."""
        if batch.wire is not None and batch.stamped == identity:
            return
        body: Any = batch.wire
        if body is None and self._codec_id:
            body = self._compress(batch)
        batch.stamped = None  # if this fails half way, its bytes say nothing that can be relied on
        attributes: cython.int = self._codec_id | (_TRANSACTIONAL_BIT if identity.transactional else 0)
        batch.wire = batch.writer.seal(
            attributes, identity.producer_id, identity.producer_epoch, identity.base_sequence, body
        )
        batch.stamped = identity

    def _compress(self, batch: Any) -> Any:
        """The compressed records, with room for the header before them."""
        raise NotImplementedError
