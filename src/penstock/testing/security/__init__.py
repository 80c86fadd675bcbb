# SPDX-License-Identifier: Apache-2.0
"""TLS and SASL of the fake cluster. The certificates beside this file are for tests alone: everybody has their keys."""
