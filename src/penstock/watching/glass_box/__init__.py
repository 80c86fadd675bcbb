# SPDX-License-Identifier: Apache-2.0
"""The glass box: a live page that shows what the producers of a process do, and why.

    producer = Producer(bootstrap_servers="...", glass_box="127.0.0.1:0")
    print(penstock.watching.glass_box.urls())

It needs nothing but the standard library, changes nothing in a producer, and reads it only while somebody looks.
"""

from penstock.watching.glass_box.box import show, urls

__all__ = ["show", "urls"]
