# SPDX-License-Identifier: Apache-2.0
"""TLS, SASL and proxies. Nothing here is imported before a client asks for it."""
