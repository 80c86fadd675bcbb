# SPDX-License-Identifier: Apache-2.0
"""`make test-brokers`: one matrix of cases on real brokers of every release, read back by clients that are not ours."""
