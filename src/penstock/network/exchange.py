# SPDX-License-Identifier: Apache-2.0
"""A request given to the network client, and what became of it."""

from __future__ import annotations

from penstock.network._exchange_cy import ClientRequest, ClientResponse

__all__ = ["ClientRequest", "ClientResponse"]
