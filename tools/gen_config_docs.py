# SPDX-License-Identifier: Apache-2.0
"""Writes docs/config.md from the table of options, so that the page cannot say anything else than the code does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.config.keys import KEYS
from penstock.config.kinds import REQUIRED, ConfigKey, Importance
from penstock.config.names import ALIASES, OTHER_NAMES, OtherName
from penstock.config.security_keys import REFUSED, SECURITY_KEYS, SPELLINGS, Refused, Spelling

PAGE = Path(__file__).resolve().parent.parent / "docs" / "config.md"

_INTRODUCTION = """\
# Configuration

<!-- Generated from the table of options by `make docs`. Do not edit. -->

An option has Kafka's dotted name, or the same in snake case; both work in a mapping and as keywords:

```python
from penstock import Producer

with Producer({"bootstrap.servers": "localhost:9092", "linger.ms": 20}, compression_type="zstd") as producer:
    producer.send("orders", b"two pumps")
```

In place of the mapping there may be the path of a Java properties file, for instance `producer.properties`:

```properties
bootstrap.servers=localhost:9092
linger.ms=20
```

```python
from penstock import Producer

with Producer("producer.properties", client_id="orders") as producer:
    producer.send("orders", b"two pumps")
```

Values may be strings, as in properties files: `"true"`, `"20"`, `"host1:9092, host2:9092"`. Whatever is wrong is a
`ConfigError` when the producer is made: unknown names (one error has them all, and suggests the ones to use), a value
that is not allowed, an option given twice with different values, options that contradict each other.

A value may stand elsewhere: `${env:NAME}` in any text is an environment variable, `${file:PATH}` the content of a file,
`${file:PATH:KEY}` a property of a properties file, `${directory:PATH:NAME}` a file of a directory,
`${keystore:PATH:ALIAS}` an entry of a key store; `$${` is a plain `${`. A reference is looked up where a client is
made, a secret again each time it is used ([security.md](security.md#secrets)).
"""

_OBJECTS = """\
## Objects in options

`key_serializer`, `value_serializer`, `partitioner`, `interceptors`, `metric_reporters` and `tracing` take objects,
classes, or names of the form `"module:attribute"`. Objects are taken as they are; classes are instantiated, and the new
object's `configure(config)` is called with all plain options if it has that method. If a class needs arguments, give
an object. The class names of the Java client's own serializers are understood too, but not that of its ListSerializer.
"""

_ORDER_INTRODUCTION = """\
## Which value wins

The first of these that has a value for an option wins:

| | where | for |
| --- | --- | --- |
| 1 | argument | what a program passes: the keywords and the mapping of `Producer`, the options of a Spark writer |
| 2 | command line | `-b`, then `-X name=value`, of `penstock produce`, `perf` and `recover`; then `--watch` |
| 3 | environment | for `glass.box` and `glass.box.token` only: the first two variables below; an empty one is none |
| 4 | file | the properties file that `Producer` or `--config` names, the definition of a pipeline |
| 5 | default | that of the command, then that of this page |

The environment sets no other option by itself. A value can refer to a variable, wherever the value is:
`linger.ms=${env:LINGER}`. It then wins or loses as the argument or the line that names it. A variable that is named and
missing is an error.

Not all of these exist everywhere, and a `Producer` refuses to choose between its arguments and its file:
"""

_ORDER = (
    ("where", "order"),
    ("---", "---"),
    (
        "`Producer(config, **options)`",
        (
            "an option that is given twice with different values, as an argument or in the file, is an error, which "
            "names both places; the environment wins over the file"
        ),
    ),
    (
        "`penstock produce`, `perf`, `recover`",
        "`-b`, then the last `-X` of a name, then `--watch`, the environment, the file of `--config`, the defaults",
    ),
    (
        "`penstock run`, `run_pipeline`",
        (
            "`--watch`, then the definition, in which `--var NAME=VALUE` sets [variables](pipeline.md#variables); then "
            "the defaults below; of the environment only the token of the live page counts, where no option gives one"
        ),
    ),
    (
        "Spark",
        (
            "the options of the writer (`kafka.linger.ms`), then the defaults below; of the environment only the token "
            "of the live page counts, where no option gives one"
        ),
    ),
)

_ENVIRONMENT = """\
The variables that are Penstock's own:
"""

_OF_OTHERS = """\
It also reads variables of others: `JAVA_HOME` and `XDG_CACHE_HOME` for the development broker, `XDG_RUNTIME_DIR` for
the notes of live pages, those of AWS for [`AWS_MSK_IAM`](security.md#amazon-msk), and those of the libraries that it
uses: for example `https_proxy` and `no_proxy` for [requests for tokens](security.md#through-a-proxy),
`PROMETHEUS_MULTIPROC_DIR`, and `SPARK_HOME`.
"""

_VARIABLES = (
    ("variable", "means"),
    ("---", "---"),
    (
        "`PENSTOCK_GLASS_BOX`, `PENSTOCK_GLASS_BOX_TOKEN`",
        "address and token of the [live page](glass-box.md); `penstock top` reads the token, too",
    ),
    ("`PENSTOCK_PURE=1`", "run the Python sources, even if compiled modules are there"),
    ("`PENSTOCK_REQUIRE_EXT=1`", "at installation: fail if the modules cannot be compiled"),
    ("`PENSTOCK_DISABLE_EXT=1`", "at installation: do not compile"),
    (
        "`PENSTOCK_KEYSTORE_PASSWORD`, `PENSTOCK_KEYSTORE_PASSWORD_FILE`",
        "the password of the key stores that [references](security.md#secrets) name, or a file that has it",
    ),
    (
        "`PENSTOCK_HOME`",
        "where the development broker keeps the jars of Kafka and its data; otherwise `~/.cache/penstock`",
    ),
    ("`PENSTOCK_JAVA_OPTIONS`", "further options for the Java processes of the development broker"),
)

_GROUPS: tuple[tuple[Importance, str], ...] = (
    ("high", "## Look at these first"),
    ("medium", "## Worth knowing"),
    ("low", "## Seldom touched"),
)

_BETWEEN_OPTIONS = """\
## Options that depend on each other

- `delivery.timeout.ms` must be at least `linger.ms` + `request.timeout.ms`. When it is not set it is raised to that.
- `reconnect.backoff.ms` without `reconnect.backoff.max.ms` means a wait that does not grow.
- `partitioner.rack.aware` needs `client.rack`.
- A partitioner of your own turns `partitioner.adaptive.partitioning.enable`, `partitioner.ignore.keys` and
  `partitioner.rack.aware` off.
"""

_ALIASES = """\
## Names of older clients

Understood, with a warning in the log:

| old name | means |
|---|---|
"""

_ALIAS_NOTES = {
    "block.on.buffer.full": "true: wait for ever; false: do not wait, unless another option says how long",
}

_OTHER_CLIENTS = """\
## Names of other clients

Refused, with an error that names the option to use. librdkafka is the library under confluent-kafka.

| option | of | use here |
|---|---|---|
"""

_NOT_YET = """\
## Not yet

These are known, and refused with an error as long as their feature is missing:

| option | only accepted as | what is to come |
|---|---|---|
"""

_SECURITY = """\
## TLS, SASL and proxies

[security.md](security.md) says which of these you need, and has working examples.
"""

_SPELLINGS = """\
## Names of security in other clients

Understood as if the option had been given under its name here:

| option | of | means |
|---|---|---|
"""

_REFUSED = """\
Refused, with an error that says what to do instead:

| option | why |
|---|---|
"""

_WITHOUT_EFFECT = """\
Accepted without effect, with one warning:

| option | why |
|---|---|
"""


# They have sections of their own.
_APART = {key.name for key in KEYS.values() if key.ignored} | {key.name for key in SECURITY_KEYS}


def render() -> str:
    """Give the text of the page."""
    return "\n".join(_sections())


def _sections() -> Iterator[str]:
    yield _INTRODUCTION
    yield _ORDER_INTRODUCTION
    yield _rows(_ORDER)
    yield _ENVIRONMENT
    yield _rows(_VARIABLES)
    yield _OF_OTHERS
    yield _OBJECTS
    for importance, title in _GROUPS:
        yield f"{title}\n"
        for key in KEYS.values():
            if key.importance == importance and key.not_yet is None and key.name not in _APART:
                yield _option(key)
    yield f"{_SECURITY}"
    for key in SECURITY_KEYS:
        if key.ignored is None:
            yield _option(key)
    yield _SPELLINGS + "".join(_spelling_row(name, spelling) for name, spelling in SPELLINGS.items())
    yield _REFUSED + "".join(_refused_row(name, refused) for name, refused in REFUSED.items())
    yield _WITHOUT_EFFECT + "".join(
        f"| `{key.name}` | {key.ignored} |\n" for key in KEYS.values() if key.ignored
    )
    yield _BETWEEN_OPTIONS
    yield _ALIASES + "".join(_alias_row(old, new) for old, new in ALIASES.items())
    yield _OTHER_CLIENTS + "".join(_other_row(name, known) for name, known in OTHER_NAMES.items())
    yield _NOT_YET + "".join(_later_row(key) for key in KEYS.values() if key.not_yet is not None)


def _rows(table: tuple[tuple[str, str], ...]) -> str:
    return "".join(f"| {left} | {right} |\n" for left, right in table)


def _option(key: ConfigKey) -> str:
    facts = [f"keyword `{key.field_name}`", key.kind.value, _default(key)]
    if key.check.allowed:
        facts.append(f"allowed: {key.check.allowed}")
    return f"### {key.name}\n\n{key.doc}\n\n*{'; '.join(facts)}*\n"


def _default(key: ConfigKey) -> str:
    return "required" if key.default is REQUIRED else f"default: {_shown(key.default)}"


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if value in ("", ()):
        return "empty"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _alias_row(old: str, new: str) -> str:
    note = f" ({_ALIAS_NOTES[old]})" if old in _ALIAS_NOTES else ""
    return f"| `{old}` | `{new}`{note} |\n"


def _other_row(name: str, known: OtherName) -> str:
    here = ", ".join(f"`{each}`" for each in known.here) or "nothing:"
    return f"| `{name}` | {known.whose} | {' '.join(filter(None, (here, known.note)))} |\n"


def _spelling_row(name: str, spelling: Spelling) -> str:
    return f"| `{name}` | {spelling.whose} | `{spelling.here}` |\n"


def _refused_row(name: str, refused: Refused) -> str:
    unless = f", unless it is {refused.harmless}" if refused.harmless else ""
    return f"| `{name}`{unless} | {refused.why} |\n"


def _later_row(key: ConfigKey) -> str:
    return f"| `{key.name}` | {_shown(key.default)} | {key.not_yet} |\n"


def main() -> None:
    """Write docs/config.md."""
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
