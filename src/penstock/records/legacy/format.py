# SPDX-License-Identifier: Apache-2.0
"""The layout of a message set, magic 0 and 1.

A set is entries one behind the other, without a header of its own. An entry is an offset, a size, and the message:
checksum (zlib's CRC-32 of what follows it), magic, attributes, in magic 1 a timestamp, then key and value, each after
its length (-1 is null). A compressed set is the value of a single entry, the wrapper, whose attributes name the codec.
"""

from __future__ import annotations

import struct
from typing import Final

# Offset, and the size of the message.
ENTRY_PREFIX: Final = struct.Struct(">qi")
# Checksum, magic, attributes.
MESSAGE_HEAD: Final = struct.Struct(">Ibb")
TIMESTAMP: Final = struct.Struct(">q")
FIELD_LENGTH: Final = struct.Struct(">i")

# Of an entry. The magic has the place that it has in a record batch.
SIZE_AT: Final = 8
PREFIX_SIZE: Final = 12
MAGIC_AT: Final = 16
ATTRIBUTES_AT: Final = 17

CRC_SIZE: Final = 4
# Of a message, key and value not counted, by magic.
MESSAGE_OVERHEAD: Final = (14, 22)
# Of an entry: the same with offset and size.
ENTRY_OVERHEAD: Final = (26, 34)

NEWEST_LEGACY_MAGIC: Final = 1

# Attributes of a message.
CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08  # magic 1 only; set: the broker's time of append
