# SPDX-License-Identifier: Apache-2.0
"""Settings that a broker would refuse are refused when they are made."""

from __future__ import annotations

import dataclasses

import pytest
from network.harness import network_settings

from penstock.config.keys import KEYS
from penstock.network import NetworkSettings
from penstock.network.settings import CONNECTION_OPTIONS


@pytest.mark.parametrize("name", ["penstock", "a", "my-client.2"])
def test_software_names_that_brokers_accept(name):
    assert network_settings(client_software_name=name).client_software_name == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "a_b", "a\n"])
def test_software_names_that_brokers_refuse(name):
    with pytest.raises(ValueError, match="client_software_name"):
        network_settings(client_software_name=name)
    with pytest.raises(ValueError, match="client_software_version"):
        network_settings(client_software_version=name)


def test_at_least_one_request_must_be_possible():
    with pytest.raises(ValueError, match="max_in_flight"):
        network_settings(max_in_flight=0)


def test_every_option_of_connections_is_an_option_and_a_field():
    assert set(CONNECTION_OPTIONS) <= set(KEYS)
    assert set(CONNECTION_OPTIONS.values()) <= {field.name for field in dataclasses.fields(NetworkSettings)}
    values = {option: object() for option in CONNECTION_OPTIONS}
    settings = NetworkSettings.from_options(values, client_id="a", max_in_flight=1, cluster_check=False)
    assert all(getattr(settings, field) is values[option] for option, field in CONNECTION_OPTIONS.items())
