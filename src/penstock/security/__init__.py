# SPDX-License-Identifier: Apache-2.0
"""TLS, SASL and proxies. Imported only by a client that is configured for one of them."""
