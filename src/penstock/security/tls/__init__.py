# SPDX-License-Identifier: Apache-2.0
"""TLS: trust and identity from files, and the transport that encrypts."""
