# SPDX-License-Identifier: Apache-2.0
"""The same rows from Spark to Kafka: through Spark's own connector, which runs in the JVM, and through Penstock.

Both run on the Spark version that the connector was made for, in an environment of its own (tools/spark_env.py). A sink
is measured from outside: its Spark application is a process that gets jobs on its standard input (`application`), and
the CPU time is that of the whole tree of processes below it (`processes`).
"""
