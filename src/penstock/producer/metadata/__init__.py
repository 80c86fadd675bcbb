# SPDX-License-Identifier: Apache-2.0
"""What is known about the cluster, and when it is asked for."""
