# SPDX-License-Identifier: Apache-2.0
"""Settings that a broker would refuse are refused when they are made."""

from __future__ import annotations

import pytest

from penstock.network import NetworkSettings


@pytest.mark.parametrize("name", ["penstock", "a", "my-client.2"])
def test_software_names_that_brokers_accept(name):
    assert NetworkSettings(client_software_name=name).client_software_name == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "a_b", "a\n"])
def test_software_names_that_brokers_refuse(name):
    with pytest.raises(ValueError, match="client_software_name"):
        NetworkSettings(client_software_name=name)
    with pytest.raises(ValueError, match="client_software_version"):
        NetworkSettings(client_software_version=name)


def test_at_least_one_request_must_be_possible():
    with pytest.raises(ValueError, match="max_in_flight"):
        NetworkSettings(max_in_flight=0)
