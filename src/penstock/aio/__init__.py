# SPDX-License-Identifier: Apache-2.0
"""The producer for asyncio and trio. It is loaded by those who ask for `penstock.AsyncProducer`."""
