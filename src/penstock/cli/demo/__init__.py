# SPDX-License-Identifier: Apache-2.0
"""`penstock demo`: a pipeline that is killed twice, and what arrived."""
