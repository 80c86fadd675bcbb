# SPDX-License-Identifier: Apache-2.0
"""Tokens for OAUTHBEARER: where they come from, what they must be, and when they are replaced."""
