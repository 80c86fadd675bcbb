# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Java: runs as ``java``, and behaves as Kafka's storage tool and broker do from the outside.

What goes wrong is told by files beside it: ``fail-format``, ``fail-start``, ``fail-zookeeper``, ``taken-once`` (the
first start finds its port taken), ``never-ready``. Each start leaves a line in ``starts``.
"""

import pathlib
import signal
import socket
import struct
import sys

HERE = pathlib.Path(__file__).parent


def main() -> int:
    if sys.argv[1:] == ["-version"]:
        sys.stderr.write('openjdk version "17.0.1"\n')
        return 0
    after_classpath = sys.argv[sys.argv.index("-cp") + 2 :]
    class_name, args = after_classpath[0], after_classpath[1:]
    if class_name == "kafka.tools.StorageTool":
        return format_storage(args)
    if class_name == "org.apache.zookeeper.server.quorum.QuorumPeerMain":
        return serve_zookeeper(pathlib.Path(args[0]))
    if class_name == "kafka.Kafka":
        return serve(pathlib.Path(args[0]))
    sys.stdout.buffer.write(b"ran " + class_name.encode() + b" \xff\r\n" + sys.stdin.buffer.read())
    return 3


def metadata(correlation: bytes, port: int) -> bytes:
    """An answer to Metadata, version 0: one broker, no topic."""
    body = correlation + struct.pack(">iih9sii", 1, 1, 9, b"127.0.0.1", port, 0)
    return struct.pack(">i", len(body)) + body


def read_properties(path: pathlib.Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def format_storage(args: list[str]) -> int:
    if (HERE / "fail-format").exists():
        sys.stdout.write("the disk is on fire\n")
        return 1
    folder = pathlib.Path(read_properties(pathlib.Path(args[args.index("--config") + 1]))["log.dirs"])
    folder.mkdir(parents=True)
    (folder / "meta.properties").write_text(args[args.index("--cluster-id") + 1])
    return 0


def serve_zookeeper(path: pathlib.Path) -> int:
    if (HERE / "fail-zookeeper").exists():
        sys.stdout.write("Exception in thread main: no such directory\n")
        return 1
    properties = read_properties(path)
    with socket.create_server((properties["clientPortAddress"], int(properties["clientPort"]))) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"imok" if connection.recv(4) == b"ruok" else b"")


def serve(path: pathlib.Path) -> int:
    properties = read_properties(path)
    port = int(properties["listeners"].split(",")[0].rsplit(":", 1)[1])
    with open(HERE / "starts", "a") as starts:
        starts.write(f"{port}\n")
    if (HERE / "fail-start").exists():
        sys.stdout.write("Exception in thread main: no such option\n")
        return 1
    if (HERE / "taken-once").exists():
        (HERE / "taken-once").unlink()
        sys.stdout.write("java.net.BindException: Address already in use\n")
        return 1
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    with socket.create_server(("127.0.0.1", port)) as server:
        if not (HERE / "never-ready").exists():
            line = (
                "[Kafka Server 1], started" if "zookeeper.connect" in properties else "Kafka Server started"
            )
            (path.parent / "server.log").open("a").write(f"INFO {line}\n")
        while True:
            connection, _ = server.accept()
            with connection:
                request = connection.recv(64)
                connection.sendall(metadata(request[8:12], port))


if __name__ == "__main__":
    sys.exit(main())
