# SPDX-License-Identifier: Apache-2.0
"""From the options of SASL, sasl.jaas.config among them, to settings."""

from __future__ import annotations

import traceback

import pytest

from penstock.config.config import ProducerConfig
from penstock.config.kinds import Password
from penstock.errors import ConfigError
from penstock.security.oauth.oidc import OidcSource
from penstock.security.oauth.source import ProviderSource

BASE = {"bootstrap.servers": "localhost:9092", "security.protocol": "SASL_SSL"}
KAFKA = "org.apache.kafka.common.security"
PLAIN = f'{KAFKA}.plain.PlainLoginModule required username="me" password="hunter2";'
SCRAM = f'{KAFKA}.scram.ScramLoginModule required username="me" password="hunter2"'
OAUTH = f"{KAFKA}.oauthbearer.OAuthBearerLoginModule required"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"


def of(mechanism, jaas=None, more=None):
    config = BASE | {"sasl.mechanism": mechanism} | (more or {})
    return ProducerConfig.from_user(config | ({"sasl.jaas.config": jaas} if jaas else {})).security.sasl


def refusal(*args):
    with pytest.raises(ConfigError) as caught:
        of(*args)
    assert "hunter2" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("prefix", ["", "kafkashaded."])
def test_jaas_of_plain(prefix):
    settings = of("plain", prefix + PLAIN)
    assert (settings.mechanism, settings.username, settings.password) == ("PLAIN", "me", Password("hunter2"))
    assert "hunter2" not in repr(settings)


def test_the_password_of_event_hubs():
    secret = "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k="
    jaas = f'{KAFKA}.plain.PlainLoginModule required username="$ConnectionString" password="{secret}";'
    settings = of("PLAIN", jaas)
    assert (settings.username, settings.password.value) == ("$ConnectionString", secret)


def test_scram_with_a_delegation_token():
    assert of("SCRAM-SHA-512", f'{SCRAM} tokenauth=true serviceName="kafka";').token_auth
    assert not of("SCRAM-SHA-512", f"{SCRAM};").token_auth


def test_user_and_password_by_options():
    for names in (("sasl.username", "sasl.password"), ("sasl_plain_username", "sasl_plain_password")):
        settings = of("SCRAM-SHA-256", None, dict(zip(names, ("me", "hunter2"), strict=True)))
        assert (settings.username, settings.password.value) == ("me", "hunter2")
    same = of("PLAIN", PLAIN, {"sasl.username": "me", "sasl.password": "hunter2"})
    assert same.username == "me"


def test_oidc_by_options_and_by_jaas():
    more = {
        ENDPOINT: "https://idp/token",
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
        "https.ca.location": "/ca.pem",
        "sasl.login.refresh.window.factor": "0.9",
        "sasl.login.callback.handler.class": f"{KAFKA}.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    }
    by_option = {"sasl.oauthbearer.client.id": "me", "sasl.oauthbearer.client.secret": "hunter2"}
    by_jaas = f'{OAUTH} clientId="other" clientSecret="hunter2" extension_logicalCluster="x";'
    one, two = of("OAUTHBEARER", None, more | by_option), of("OAUTHBEARER", by_jaas, more)
    assert (one.oauth.client_id, one.oauth.client_secret.value) == ("me", "hunter2")
    assert (two.oauth.client_id, two.oauth.client_secret.value) == ("other", "hunter2")
    for settings in (one, two):
        assert settings.extensions == {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"}
        assert (settings.oauth.scope, settings.oauth.tls.trust_location) == ("kafka", "/ca.pem")
        assert (settings.oauth.refresh_window_factor, settings.oauth.grant) == (0.9, "client_credentials")
    assert of("OAUTHBEARER", by_jaas, more | by_option).oauth.client_id == "me"


def test_the_handler_of_strimzi():
    jaas = (
        f'{OAUTH} oauth.client.id="me" oauth.client.secret="hunter2" oauth.token.endpoint.uri="https://idp/token" '
        'oauth.ssl.truststore.location="/ca.pem";'
    )
    handler = "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"
    oauth = of("OAUTHBEARER", jaas, {"sasl.login.callback.handler.class": handler}).oauth
    assert (oauth.client_id, oauth.client_secret.value) == ("me", "hunter2")
    assert (oauth.token_endpoint_url, oauth.tls.trust_location) == ("https://idp/token", "/ca.pem")


def test_the_jwt_bearer_grant():
    more = {ENDPOINT: "https://idp/token", "sasl.oauthbearer.assertion.private.key.file": "/k.pem"}
    retriever = {"sasl.oauthbearer.jwt.retriever.class": f"{KAFKA}.oauthbearer.JwtBearerJwtRetriever"}
    grant = {"sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer"}
    assert of("OAUTHBEARER", None, more | retriever).oauth.grant == "jwt_bearer"
    assert of("OAUTHBEARER", None, more | grant).oauth.grant == "jwt_bearer"
    contrary = retriever | {"sasl.oauthbearer.grant.type": "client_credentials"}
    assert "contradict each other" in refusal("OAUTHBEARER", None, more | contrary)


def test_an_unsecured_token():
    claims = 'unsecuredLoginStringClaim_sub="me" unsecuredLoginNumberClaim_n="5"'
    jaas = f'{OAUTH} {claims} unsecuredLoginLifetimeSeconds="60";'
    oauth = of("OAUTHBEARER", jaas).oauth
    assert (oauth.unsecured_subject, oauth.unsecured_lifetime_seconds, oauth.unsecured_claims) == (
        "me",
        60,
        {"n": 5},
    )


class Tokens:
    """A token provider."""

    def token(self):
        return "x"


def test_a_provider_as_it_is_as_a_class_and_by_name():
    own = Tokens()
    assert of("OAUTHBEARER", None, {"sasl_oauth_token_provider": own}).token_provider is own
    assert isinstance(of("OAUTHBEARER", None, {"oauth_cb": Tokens}).token_provider, Tokens)
    named = of("OAUTHBEARER", None, {"sasl.oauth.token.provider": "os.path:join"}).token_provider
    assert callable(named)


def test_what_a_provider_is_called_with_is_not_shown():
    seen = []

    def provider(config):
        seen.append(config)
        return "a.b.c"

    more = {"sasl.oauth.token.provider": provider, "sasl.oauthbearer.config": "principal=x hunter2"}
    settings = of("OAUTHBEARER", None, more)
    assert "hunter2" not in repr(settings)
    assert settings.oauth.callback_config == Password("principal=x hunter2")
    ProviderSource(provider, settings.oauth).fetch()
    assert seen == ["principal=x hunter2"]


def test_the_text_of_a_providers_error_is_not_shown():
    class Provider:
        def __init__(self):
            raise RuntimeError("bad key hunter2")

    with pytest.raises(
        ConfigError, match=r"Provider\(\) failed: RuntimeError \(raised in __init__"
    ) as caught:
        of("OAUTHBEARER", None, {"sasl.oauth.token.provider": Provider})
    shown = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in shown.replace('RuntimeError("bad key hunter2")', "")


def test_kerberos():
    krb = "com.sun.security.auth.module.Krb5LoginModule required"
    assert of("GSSAPI").kerberos.service_name == "kafka"
    settings = of(
        "GSSAPI", f'{krb} useKeyTab=true keyTab="/k" principal="me@R" serviceName="broker";'
    ).kerberos
    assert (settings.keytab, settings.principal, settings.service_name) == ("/k", "me@R", "broker")
    more = {"sasl.kerberos.keytab": "/k", "sasl.kerberos.principal": "me", "sasl_kerberos_domain_name": "h"}
    settings = of("GSSAPI", None, more).kerberos
    assert (settings.keytab, settings.principal, settings.host) == ("/k", "me", "h")
    assert of("GSSAPI", f'{krb} useTicketCache=true ticketCache="/c";').kerberos.ticket_cache == "/c"
    assert "useKeyTab" in refusal("GSSAPI", f"{krb} useKeyTab=true;")
    assert "useKeyTab=true" in refusal("GSSAPI", f'{krb} keyTab="/k";')
    assert "different" in refusal("GSSAPI", f'{krb} serviceName="a";', {"sasl.kerberos.service.name": "b"})


def test_amazon():
    jaas = 'shadedmskiam.software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName="dev" awsRoleArn="arn:x";'
    handler = "shadedmskiam.software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    aws = of("AWS_MSK_IAM", jaas, {"sasl.client.callback.handler.class": handler}).aws
    assert (aws.profile, aws.role_arn) == ("dev", "arn:x")
    assert of("AWS_MSK_IAM").aws is not None
    assert "no counterpart" in refusal("AWS_MSK_IAM", None, {"sasl.client.callback.handler.class": "a.B"})


def test_a_mechanism_of_the_users_own_gets_everything():
    settings = of(
        "My-Own", 'a.b.MyModule required username="me" password="hunter2";', {"sasl.kerberos.keytab": "/k"}
    )
    assert (settings.mechanism, settings.username, settings.password.value) == ("My-Own", "me", "hunter2")
    assert settings.properties["sasl.kerberos.keytab"] == "/k"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("PLAIN",), "PLAIN needs a username"),
        (("PLAIN", None, {"sasl.username": "me"}), "PLAIN needs a password"),
        (("PLAIN", None, {"sasl.username": "me", "sasl.password": ""}), "PLAIN needs a password"),
        (
            ("SCRAM-SHA-256", f'{KAFKA}.scram.ScramLoginModule required username="me" password="";'),
            "needs a password",
        ),
        (("PLAIN", PLAIN, {"sasl.username": "you"}), "are different"),
        (("PLAIN", PLAIN, {"sasl.password": "hunter21"}), "sasl.password and password in sasl.jaas.config"),
        (("PLAIN", f"{SCRAM};"), "ScramLoginModule, which is for SCRAM-SHA-256 and SCRAM-SHA-512"),
        (
            ("PLAIN", 'a.OtherModule required username="x" password="hunter2";'),
            "a login module that is not known",
        ),
        (("PLAIN", PLAIN[:-1]), "sasl.jaas.config"),
        (("PLAIN,SCRAM-SHA-256",), "name one mechanism"),
        (("OAUTHBEARER",), "OAUTHBEARER needs tokens"),
        (
            ("OAUTHBEARER", None, {"sasl.username": "me"}),
            "sasl.username is given, but sasl.mechanism is OAUTHBEARER",
        ),
        (("PLAIN", PLAIN, {"oauth_cb": print}), "oauth_cb is given"),
        (("PLAIN", PLAIN, {ENDPOINT: "https://x"}), f"{ENDPOINT} is given"),
        (("OAUTHBEARER", None, {ENDPOINT: "ftp://x"}), "must begin with"),
        (
            ("OAUTHBEARER", None, {ENDPOINT: "https://x"}),
            "without sasl.oauthbearer.client.credentials.client.id",
        ),
        (("OAUTHBEARER", None, {ENDPOINT: "https://x", "sasl.oauthbearer.client.id": "a"}), "client.secret"),
        (
            ("OAUTHBEARER", None, {ENDPOINT: "https://x", "oauth_cb": print}),
            "both say where tokens come from",
        ),
        (("OAUTHBEARER", None, {"oauth_cb": "nowhere"}), "module:attribute"),
        (("OAUTHBEARER", None, {"oauth_cb": "nosuchmodule:x"}), "cannot be loaded"),
        (("OAUTHBEARER", None, {"oauth_cb": print, "sasl.oauthbearer.extensions": "a"}), "name=value"),
        (
            ("OAUTHBEARER", None, {"oauth_cb": print, "sasl.login.callback.handler.class": "a.Mine"}),
            "no counterpart here; give tokens with sasl_oauth_token_provider",
        ),
        (
            ("OAUTHBEARER", None, {ENDPOINT: "https://x", "sasl.oauthbearer.jwt.retriever.class": "a.Mine"}),
            "no counterpart",
        ),
        (
            (
                "OAUTHBEARER",
                None,
                {
                    ENDPOINT: "https://x",
                    "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
                },
            ),
            "needs an assertion",
        ),
        (("GSSAPI", PLAIN), "PlainLoginModule, which is for PLAIN"),
    ],
)
def test_what_is_refused(args, text):
    assert text in refusal(*args)


OF_OIDC = {
    ENDPOINT: "https://idp/token",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": "hunter2",
}
OF_FILE = {ENDPOINT: "file:///run/token"}
OF_PROVIDER = {"oauth_cb": print}
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule required"


@pytest.mark.parametrize(
    ("mechanism", "jaas", "more", "refused"),
    [
        ("PLAIN", PLAIN, {}, {"https.ca.location": "/ca"}),
        ("PLAIN", PLAIN, {}, {"sasl.oauthbearer.scope": "s"}),
        ("PLAIN", PLAIN, {}, {"sasl.oauthbearer.assertion.private.key.pem": "hunter2"}),
        ("PLAIN", PLAIN, {}, {"sasl.login.callback.handler.class": "com.acme.Foo"}),
        ("PLAIN", PLAIN, {}, {"sasl.client.callback.handler.class": "com.acme.Foo"}),
        ("PLAIN", PLAIN, {}, {"sasl.kerberos.service.name": "kafka"}),
        ("SCRAM-SHA-512", f"{SCRAM};", {}, {"sasl.login.refresh.buffer.seconds": 300}),
        ("AWS_MSK_IAM", None, {}, {"sasl.login.callback.handler.class": "com.acme.Foo"}),
        ("GSSAPI", None, {}, {"https.ca.pem": "text"}),
        ("OAUTHBEARER", None, OF_OIDC, {"sasl.client.callback.handler.class": "com.acme.Foo"}),
        ("OAUTHBEARER", None, OF_OIDC, {"sasl.oauthbearer.config": "hunter2"}),
        ("OAUTHBEARER", None, OF_PROVIDER, {"sasl.oauthbearer.client.id": "me"}),
        ("OAUTHBEARER", None, OF_PROVIDER, {"sasl.oauthbearer.client.secret": "hunter2"}),
        ("OAUTHBEARER", None, OF_PROVIDER, {"https.ca.location": "/ca"}),
        ("OAUTHBEARER", None, OF_PROVIDER, {"sasl.oauthbearer.assertion.file": "/a"}),
        ("OAUTHBEARER", None, OF_PROVIDER, {"sasl.oauthbearer.method": "oidc"}),
        ("OAUTHBEARER", None, OF_FILE, {"sasl.oauthbearer.client.id": "me"}),
        ("OAUTHBEARER", None, OF_FILE, {"sasl.oauthbearer.client.secret": "hunter2"}),
        ("OAUTHBEARER", None, OF_FILE, {"sasl.oauthbearer.scope": "s"}),
        ("OAUTHBEARER", None, OF_FILE, {"sasl.oauthbearer.jwt.retriever.class": "a.JwtBearerJwtRetriever"}),
        ("OAUTHBEARER", None, OF_OIDC, {"sasl.oauthbearer.jwt.retriever.class": "a.FileJwtRetriever"}),
    ],
)
def test_what_would_have_no_effect_is_refused(mechanism, jaas, more, refused):
    assert of(mechanism, jaas, more)
    ((name, _),) = refused.items()
    assert name in refusal(mechanism, jaas, more | refused)


@pytest.mark.parametrize(
    ("mechanism", "jaas", "more", "refused", "words"),
    [
        ("PLAIN", PLAIN[:-1], {}, "tokenauth=true", "tokenauth is not known for PlainLoginModule"),
        ("PLAIN", PLAIN[:-1], {}, "hunter2=password", "option 3 is not known"),
        ("PLAIN", PLAIN[:-1], {}, '"hunter2 =x"=y', "option 3 is not known"),
        (
            "SCRAM-SHA-256",
            SCRAM,
            {},
            'tokenauth="yes"',
            "tokenauth in sasl.jaas.config must be true or false",
        ),
        ("OAUTHBEARER", OAUTH, OF_PROVIDER, 'clientSecret="hunter2"', "clientSecret has no effect"),
        ("OAUTHBEARER", OAUTH, OF_FILE, 'ssl.truststore.location="/t"', "tokens come from a token file"),
        ("OAUTHBEARER", OAUTH, OF_OIDC, 'oauth.audience="a"', "option 1 is not known"),
        ("OAUTHBEARER", OAUTH, OF_OIDC, 'unsecuredLoginStringClaim_sub="a"', "has no effect"),
        ("OAUTHBEARER", OAUTH, OF_OIDC, 'ssl.nonsense="a"', "ssl.nonsense is not an option of TLS"),
        ("OAUTHBEARER", OAUTH, OF_OIDC, 'ssl.keystore.password="hunter2"', "for the token endpoint: "),
        ("GSSAPI", KERBEROS, {}, 'password="hunter2"', "password is not known for Krb5LoginModule"),
        ("GSSAPI", KERBEROS, {}, 'ticketCache="/c"', "without useTicketCache=true"),
    ],
)
def test_options_of_a_login_module_that_would_have_no_effect_are_refused(
    mechanism, jaas, more, refused, words
):
    assert of(mechanism, f'{jaas} serviceName="kafka";', more)
    assert words in refusal(mechanism, f"{jaas} {refused};", more)


@pytest.mark.parametrize(
    "jaas",
    [
        '"hunter2" required username="me";',
        "a.PlainLoginModule required hunter2=;",
        "a.B required hunter2=x 1;",
    ],
)
def test_a_word_in_the_wrong_place_may_be_the_password(jaas):
    assert "sasl.jaas.config" in refusal("PLAIN", jaas)


def test_tls_of_the_token_endpoint_is_that_of_the_login_module():
    files = 'ssl.keystore.location="/k.jks" ssl.keystore.password="hunter2" ssl.truststore.location="/t.jks"'
    more = 'ssl.truststore.password="hunter3" ssl.protocol="TLSv1.2" ssl.secure.random.implementation="x"'
    tls = of("OAUTHBEARER", f"{OAUTH} {files} {more};", OF_OIDC).oauth.tls
    assert (tls.store_location, tls.store_password.value) == ("/k.jks", "hunter2")
    assert (tls.trust_location, tls.trust_password.value, tls.protocol) == ("/t.jks", "hunter3", "TLSv1.2")
    assert "hunter" not in repr(tls)
    twice = refusal("OAUTHBEARER", f"{OAUTH} {files};", OF_OIDC | {"https.ca.location": "/ca"})
    assert "says again what https.ca.location says: leave one of them out" in twice
    clear = OF_OIDC | {ENDPOINT: "http://localhost/token", "https.ca.location": "/ca"}
    assert "does not begin with https://" in refusal("OAUTHBEARER", None, clear)


@pytest.mark.parametrize(
    ("jaas", "more", "text", "options"),
    [
        (
            None,
            {"https.ca.location": "/ca", "https.ca.pem": "text"},
            "for the token endpoint: https.ca.pem and https.ca.location are both given; leave one of them out",
            ("https.ca.pem", "https.ca.location"),
        ),
        (
            None,
            {"https.ca.pem": " "},
            "for the token endpoint: https.ca.pem is empty; leave it out, or give PEM text",
            ("https.ca.pem",),
        ),
        (
            'ssl.truststore.type="JKS"',
            {"https.ca.pem": "text"},
            "for the token endpoint: https.ca.pem is PEM text, but ssl.truststore.type is JKS: set the type to PEM",
            ("https.ca.pem", "sasl.jaas.config"),
        ),
        (
            'oauth.ssl.truststore.password="hunter2"',
            {},
            "for the token endpoint: oauth.ssl.truststore.password is given without ssl.truststore.location",
            ("sasl.jaas.config",),
        ),
        (  # what the user wrote for the brokers is no name for what stands in the JAAS text
            'ssl.truststore.location="/t" ssl.truststore.certificates="text"',
            {"ssl.ca.location": "/ca"},
            (
                "for the token endpoint: ssl.truststore.certificates and ssl.truststore.location are both given; "
                "leave one of them out"
            ),
            ("sasl.jaas.config",),
        ),
    ],
)
def test_errors_of_the_token_endpoints_tls_name_what_was_written(jaas, more, text, options):
    with pytest.raises(ConfigError) as caught:
        of("OAUTHBEARER", jaas and f"{OAUTH} {jaas};", OF_OIDC | more)
    assert (str(caught.value), caught.value.options) == (text, options)
    assert caught.value.option == (options[0] if len(options) == 1 else None)


@pytest.mark.parametrize(
    ("jaas", "more", "begin", "option"),
    [
        (None, {"https.ca.location": "/no/ca.pem"}, "https.ca.location: '/no/ca.pem'", "https.ca.location"),
        (
            'oauth.ssl.truststore.location="/no/t.jks"',
            {},
            "oauth.ssl.truststore.location: '/no/t.jks'",
            "sasl.jaas.config",
        ),
    ],
)
def test_a_file_for_the_token_endpoint_is_told_with_the_option_that_names_it(jaas, more, begin, option):
    settings = of("OAUTHBEARER", jaas and f"{OAUTH} {jaas};", OF_OIDC | more)
    with pytest.raises(ConfigError) as caught:
        OidcSource(settings.oauth)
    assert str(caught.value).startswith(f"for the token endpoint: {begin}")
    assert caught.value.option == option


def test_librdkafkas_word_for_the_usual_places_asks_for_nothing():
    probe = {"https.ca.location": "probe"}
    assert of("OAUTHBEARER", None, OF_OIDC | probe).oauth.tls is None
    # Also where the option itself would be refused, like ssl.ca.location=probe.
    assert of("PLAIN", PLAIN, probe).mechanism == "PLAIN"
    in_jaas = of("OAUTHBEARER", f'{OAUTH} ssl.truststore.location="/t.pem";', OF_OIDC | probe)
    assert in_jaas.oauth.tls.trust_location == "/t.pem"


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("http://idp.example/token", True),
        ("HTTP://127.evil.example/token", True),
        ("http://10.0.0.1/token", True),
        ("http://localhost:8080/token", False),
        ("http://127.0.0.2/token", False),
        ("http://[::1]/token", False),
        ("https://idp.example/token", False),
    ],
)
def test_a_secret_in_clear_text_is_told_unless_it_stays_on_this_machine(url, warns, caplog):
    of("OAUTHBEARER", None, OF_OIDC | {ENDPOINT: url})
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warns
    assert ("not encrypted" in caplog.text) == warns
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    "more", [{"sasl.jaas.config": PLAIN}, {"sasl.username": "me", "sasl.password": "hunter2"}]
)
def test_a_missing_mechanism_is_not_taken_for_kerberos(more):
    with pytest.raises(
        ConfigError, match=r"sasl\.mechanism is missing; its default is GSSAPI.* set it to PLAIN"
    ):
        ProducerConfig.from_user(BASE | more)


def test_a_secret_in_jaas_follows_its_file(tmp_path):
    file = tmp_path / "password"
    file.write_text("one\n")
    jaas = f'{KAFKA}.plain.PlainLoginModule required username="me" password="${{file:{file}}}";'
    password = of("PLAIN", jaas).password
    assert password.value == "one"
    file.write_text('two"\\;')
    assert password.value == 'two"\\;'
    file.unlink()
    assert password.value == 'two"\\;'


LOGIN = '{}LoginModule required username="{}" password="{}";'


def replaced(mechanism, module, tmp_path, texts):
    """The first tokens of a client, after each of these texts was put into the file of its login."""
    from penstock.security.sasl.mechanism import mechanism_factory

    file = tmp_path / "jaas"
    file.write_text(LOGIN.format(module, "old-user", "old-pass"))
    settings = of(mechanism, f"${{file:{file}}}")
    kept = mechanism_factory(mechanism)(settings)
    for text in texts:
        file.write_text(text)
        started = kept.mechanism("b")
        yield started, started.first()


def test_user_and_password_are_replaced_together(tmp_path, caplog):
    new = LOGIN.format("Plain", "new-user", "new-pass")
    half = new.replace("password", "pasword")
    texts = [new, half, new[:-20], LOGIN.format("Plain", "third", "3")]
    tokens = [token for _, token in replaced("PLAIN", "Plain", tmp_path, texts)]
    assert tokens == [b"\0new-user\0new-pass"] * 3 + [b"\0third\x003"]
    assert "pass" not in caplog.text.replace("password", "")


def test_a_user_of_scram_proves_the_password_that_was_read_with_the_name(tmp_path):
    from security.sasl.dialogue import ScramServer

    new = LOGIN.format("Scram", "new-user", "new-pass")
    started, first = next(replaced("SCRAM-SHA-256", "Scram", tmp_path, [new]))
    assert first.startswith(b"n,,n=new-user,r=")
    server = ScramServer("sha256", {"new-user": "new-pass"})
    challenge = server(first)
    (tmp_path / "jaas").write_text(LOGIN.format("Scram", "third", "3"))
    assert started.next(server(started.next(challenge))) is None
    assert started.user == "new-user"
