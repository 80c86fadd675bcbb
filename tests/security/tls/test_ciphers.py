# SPDX-License-Identifier: Apache-2.0
"""Cipher suites by the names that Java, the standards and OpenSSL have for them."""

from __future__ import annotations

import logging
import ssl

import pytest

from penstock.errors import ConfigError
from penstock.security.tls.ciphers import TLS_1_2, TLS_1_3, use_ciphers

# The numbers that the standards give, for a few of each kind: OpenSSL tells the number of a suite, and so the table
# can be held against something that is not a name.
NUMBERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": 0xC02C,
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": 0xC02B,
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": 0xCCA9,
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": 0xC030,
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": 0xC02F,
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": 0xCCA8,
    "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384": 0x009F,
    "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256": 0x009E,
    "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256": 0xCCAA,
    "TLS_DHE_DSS_WITH_AES_256_GCM_SHA384": 0x00A3,
    "TLS_DHE_DSS_WITH_AES_128_GCM_SHA256": 0x00A2,
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384": 0xC024,
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": 0xC023,
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384": 0xC028,
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": 0xC027,
    "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256": 0x006B,
    "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256": 0x0067,
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": 0xC00A,
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": 0xC009,
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": 0xC014,
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": 0xC013,
    "TLS_DHE_RSA_WITH_AES_256_CBC_SHA": 0x0039,
    "TLS_DHE_RSA_WITH_AES_128_CBC_SHA": 0x0033,
    "TLS_RSA_WITH_AES_256_GCM_SHA384": 0x009D,
    "TLS_RSA_WITH_AES_128_GCM_SHA256": 0x009C,
    "TLS_RSA_WITH_AES_256_CBC_SHA256": 0x003D,
    "TLS_RSA_WITH_AES_128_CBC_SHA256": 0x003C,
    "TLS_RSA_WITH_AES_256_CBC_SHA": 0x0035,
    "TLS_RSA_WITH_AES_128_CBC_SHA": 0x002F,
}


def context(low: str = "TLSv1_2", high: str = "TLSv1_3") -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version, made.maximum_version = ssl.TLSVersion[low], ssl.TLSVersion[high]
    return made


def older(of: ssl.SSLContext) -> list[str]:
    return [each["name"] for each in of.get_ciphers() if each["name"] not in TLS_1_3]


def test_every_name_means_the_suite_with_its_number():
    assert NUMBERS.keys() == TLS_1_2.keys()
    made = context()
    made.set_ciphers("ALL:@SECLEVEL=0")
    numbers = {each["name"]: each["id"] & 0xFFFF for each in made.get_ciphers()}
    compared = [name for name, openssl in TLS_1_2.items() if openssl in numbers]
    assert len(compared) > 25
    assert [name for name in compared if numbers[TLS_1_2[name]] != NUMBERS[name]] == []


@pytest.mark.parametrize("by_openssl", [False, True])
def test_older_suites_in_their_order(by_openssl: bool):
    names = ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]
    made = context()
    use_ciphers(made, [TLS_1_2[name] for name in names] if by_openssl else names)
    assert older(made) == [TLS_1_2[name] for name in names]
    # As in Java: none of them is for TLS 1.3.
    assert made.maximum_version == ssl.TLSVersion.TLSv1_2


def test_librdkafkas_list_has_colons():
    made = context()
    use_ciphers(made, ["ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384"])
    assert len(older(made)) == 2


def test_suites_of_both_versions():
    made = context()
    use_ciphers(
        made, [*TLS_1_3[:3], "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_EMPTY_RENEGOTIATION_INFO_SCSV"]
    )
    assert older(made) == ["ECDHE-RSA-AES128-GCM-SHA256"]
    assert (made.minimum_version, made.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


def test_newest_suites_alone(caplog: pytest.LogCaptureFixture):
    made = context()
    use_ciphers(made, TLS_1_3[:3])
    assert made.minimum_version == ssl.TLSVersion.TLSv1_3
    assert caplog.records == []


@pytest.mark.skipif(hasattr(ssl.SSLContext, "set_ciphersuites"), reason="this Python can choose")
def test_a_choice_that_python_cannot_make_is_told(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        use_ciphers(context(), ["TLS_AES_256_GCM_SHA384"])
    (record,) = caplog.records
    assert "cannot choose among the suites of TLS 1.3" in record.getMessage()


@pytest.mark.parametrize(
    ("names", "words", "made"),
    [
        (["TLS_NONE"], "'TLS_NONE' is not known", context()),
        (["HIGH:!aNULL"], "'HIGH', '!aNULL' is not known", context()),
        (["TLS_AES_256_GCM_SHA384"], "TLSv1.3 only, which is not allowed", context(high="TLSv1_2")),
        (["ECDHE-RSA-AES128-GCM-SHA256"], "no suite of TLSv1.3", context(low="TLSv1_3")),
    ],
)
def test_what_cannot_be(names: list[str], words: str, made: ssl.SSLContext):
    with pytest.raises(ConfigError) as caught:
        use_ciphers(made, names)
    assert caught.value.option == "ssl.cipher.suites"
    assert words in str(caught.value)


def test_suites_that_this_openssl_does_not_have(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TLS_1_2, "TLS_OLD", "RC4-MD5-OLD")
    with pytest.raises(ConfigError, match="RC4-MD5-OLD cannot be had with OpenSSL"):
        use_ciphers(context(), ["TLS_OLD", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"])
    with pytest.raises(ConfigError, match="RC4-MD5-OLD cannot be had with OpenSSL"):
        use_ciphers(context(), ["TLS_OLD"])


def test_nothing_wanted_changes_nothing():
    made, other = context(), context()
    use_ciphers(made, [])
    assert made.get_ciphers() == other.get_ciphers()
