# SPDX-License-Identifier: Apache-2.0
"""The text of sasl.jaas.config, by the results of Kafka's own reader."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.security.sasl.jaas import JaasEntry, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def password(text: str) -> str:
    return parse_jaas(f'{PLAIN} required username="u" password={text};').options["password"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('"a;b=c,d e"', "a;b=c,d e"),
        ("'x\"y'", 'x"y'),
        ('"x\'y"', "x'y"),
        (r'"a\"b"', 'a"b'),
        (r'"c\\d"', r"c\d"),
        (r'"\t\n\r\b\f\a\v"', "\t\n\r\b\f\a\v"),
        (r'"\101"', "A"),
        (r'"\7z"', "\x07z"),
        (r'"\777"', "?7"),  # two digits where the first is above 3
        (r'"\q"', "q"),
        ("abc-1.2_3$", "abc-1.2_3$"),
        ("é", "é"),
        ("$ConnectionString", "$ConnectionString"),
        ('""', ""),
        ('"//no comment"', "//no comment"),
        ('"Endpoint=sb://x/;SharedAccessKey=ab+/c="', "Endpoint=sb://x/;SharedAccessKey=ab+/c="),
    ],
)
def test_values(written, meant):
    assert password(written) == meant


@pytest.mark.parametrize(
    "written", ["123", "-1", ".5", "a/b", "a@b", "a:b", '"a\nb"', "", '"open', "a+b", "1abc"]
)
def test_values_that_java_refuses(written):
    with pytest.raises(ConfigError) as caught:
        password(written)
    assert caught.value.option == "sasl.jaas.config"
    assert "line 1, column" in str(caught.value)


@pytest.mark.parametrize("flag", ["required", "REQUIRED", "Requisite", "sufficient", "optional"])
def test_flags(flag):
    assert parse_jaas(f"a.B {flag};") == JaasEntry("a.B", {})


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('a.B required x = "1" ;', {"x": "1"}),
        ('a.B\nrequired\n  x="1"\r\n\ty="2"\n;', {"x": "1", "y": "2"}),
        ('// first\na.B required /* in\nside */ x="1"; // last', {"x": "1"}),
        ('"a.B" required;', {}),
        ('a.B required x="1" x="2";', {"x": "2"}),
        ('a.B required ssl.truststore.location="/x";', {"ssl.truststore.location": "/x"}),
        ('  a.B required "x"="1" ;  ', {"x": "1"}),
    ],
)
def test_entries(text, options):
    assert parse_jaas(text) == JaasEntry("a.B", options)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("   \n", "it is empty"),
        ("a.B", "must be followed by required"),
        ("a.B maybe;", "must be followed by required"),
        ("a.B required", "does not end with a semicolon"),
        ('a.B required x="1"', "does not end with a semicolon"),
        ("a.B required x=a/b;", "outside of quotes a / begins a comment"),
        ("a.B required x;", "must be followed by ="),
        ("a.B required x=;", "has no value"),
        ("a.B required x=12;", "begins with a digit"),
        ('a.B required x="1"; a.C required;', "after the semicolon"),
        ("a.B required;;", "after the semicolon"),
        ("; required;", "does not begin with the class"),
        ("123 required;", "does not begin with the class"),
        ("a.B required /* open", "not closed"),
        ("com.sun.security.auth.module.LdapLoginModule required;", "not allowed"),
        ("com.sun.security.auth.module.JndiLoginModule required;", "not allowed"),
        ("a.B required " + 'x="1" ' * 50_000 + ";", "longer than"),
    ],
)
def test_texts_that_are_refused(text, why):
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config") as caught:
        parse_jaas(text)
    assert why in str(caught.value)


FILE = """
// what a JVM is started with
KafkaServer {
   com.sun.security.auth.module.LdapLoginModule required userProvider="ldap://x";
   a.Second required;
};
KafkaClient {
   a.B required
   username="me"
   password='a;}b';
};
Client {
};
"""


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (FILE, {"username": "me", "password": "a;}b"}),
        ('KafkaClient{a.B required x="1";};', {"x": "1"}),
        ('"KafkaClient" { a.B optional ; } ; /* end */', {}),
        ("Client { a.C required; };\nKafkaClient { a.B required; };", {}),
    ],
)
def test_a_whole_file(text, options):
    assert parse_jaas(text) == JaasEntry("a.B", options)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Client { a.B required; };", "no section KafkaClient with a login module"),
        ("KafkaClient { };", "no section KafkaClient with a login module"),
        ("KafkaClient { a.B required; a.C required; };", "a second login module"),
        ("KafkaClient { a.B required; }; KafkaClient { a.B required; };", "a second section KafkaClient"),
        ("KafkaClient { a.B required; }", "ends with };"),
        ("KafkaClient { a.B required;", "ends with };"),
        ("KafkaClient { a.B required };", "the name of an option is expected"),
        ("KafkaClient { a.B required; }; a.B required;", "begins with its name and {"),
        ("KafkaClient { a.B required; };;", "begins with its name and {"),
        ("KafkaClient { { a.B required; }; };", "ends with };"),
        ("KafkaClient {", "ends with };"),
        ("KafkaClient { JndiLoginModule required; };", "not allowed"),
    ],
)
def test_files_that_are_refused(text, why):
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config, line 1, column") as caught:
        parse_jaas(text)
    assert why in str(caught.value)


@given(st.text(alphabet=st.sampled_from(list("aB1.-_$=;/*\"'\\ \n\t{}é")), max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_file_has_an_entry_or_is_a_config_error(text):
    try:
        entry = parse_jaas(f"KafkaClient {{ a.B required; {text}")
    except ConfigError:
        return
    assert entry == JaasEntry("a.B", {})


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (PLAIN, "PlainLoginModule"),
        (f"kafkashaded.{PLAIN}", "PlainLoginModule"),
        ("shadedmskiam.software.amazon.msk.auth.iam.IAMLoginModule", "IAMLoginModule"),
        ("Krb5LoginModule", "Krb5LoginModule"),
    ],
)
def test_the_kind_is_the_last_part_of_the_class(module, kind):
    assert parse_jaas(f"{module} required;").kind == kind


@pytest.mark.parametrize(
    "text",
    ["hunter2!", "hunter2/x", '"hunter2', "x@hunter2", "7hunter2", 'hunter2" y="1', "a=hunter2", "a hunter2"],
)
def test_no_error_and_no_repr_shows_a_value(text):
    with pytest.raises(ConfigError) as caught:
        password(text)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(parse_jaas('a.B required password="hunter2";'))


@given(st.text(alphabet=st.sampled_from(list("aB1.-_$=;/*\"'\\ \n\t@é,")), max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_an_entry_or_a_config_error(text):
    try:
        entry = parse_jaas(f"a.B required {text}")
    except ConfigError:
        return
    assert entry.module == "a.B"


@given(st.text(max_size=40).filter(lambda text: "\n" not in text and "\r" not in text))
@settings(deadline=None)
def test_every_value_can_be_written_in_quotes(value):
    written = value.replace("\\", "\\\\").replace('"', '\\"')
    assert password(f'"{written}"') == value
