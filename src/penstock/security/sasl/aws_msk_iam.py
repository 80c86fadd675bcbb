# SPDX-License-Identifier: Apache-2.0
"""AWS_MSK_IAM: shows a broker of Amazon MSK a request that is signed with AWS keys (Signature Version 4).

The request is never sent to AWS: the broker asks IAM whether its signer may connect. The signature is good for
15 minutes and holds the broker's name, so each authentication has its own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from penstock._version import __version__
from penstock.errors import AuthenticationError
from penstock.security.sasl.aws_identity import AwsIdentities, AwsIdentity
from penstock.security.sasl.settings import AwsSettings, SaslSettings

_NAME: Final = "AWS_MSK_IAM"
_SERVICE: Final = "kafka-cluster"
_ACTION: Final = "kafka-cluster:Connect"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_SECONDS: Final = "900"
_REGION_OF_HOST: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?\.?$")


class AwsMskIamCredentials:
    """The AWS identity of a client."""

    def __init__(self, settings: SaslSettings) -> None:
        self._aws = settings.aws or AwsSettings()
        self._identities = AwsIdentities(self._aws, settings.token_provider)

    def mechanism(self, host: str) -> AwsMskIamMechanism:
        return AwsMskIamMechanism(host, self._identities.find, self._aws.region)

    def close(self) -> None:
        """Do nothing: no thread and no file is open."""

    def __repr__(self) -> str:
        return "<AwsMskIamCredentials>"


class AwsMskIamMechanism:
    """One signed request, and the broker's answer.

    Args:
        host: the broker's name, as the connection was made with it.
        find: gives the keys; blocks.
        region: of the cluster; None means the one in the broker's name.
        now: the moment of the signature.
        environment: where the region is looked for at last.
    """

    name = _NAME
    advice = (
        "check that the policy of this identity allows kafka-cluster:Connect for the cluster, that its keys have not "
        "expired, and this machine's clock"
    )

    def __init__(
        self,
        host: str,
        find: Callable[[], AwsIdentity],
        region: str | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._host = host.rstrip(".")
        self._find = find
        self._region = region
        self._now = now
        self._environment = os.environ if environment is None else environment
        self.user = ""
        self._shown = b""  # what the broker was sent

    @property
    def secrets(self) -> tuple[str, ...]:
        """What others could use for as long as it is good: the signature, and the token of temporary keys."""
        sent: dict[str, str] = json.loads(self._shown or b"{}")
        return tuple(sent[name] for name in ("x-amz-signature", "x-amz-security-token") if name in sent)

    def first(self) -> bytes:
        """The signed request.

        Raises:
            AuthenticationError: there are no keys, or the region is not known.
        """
        region = self._region or self._find_region()
        identity = self._find()
        self.user = identity.access_key
        self._shown = signed_payload(self._host, region, identity, self._now())
        return self._shown

    def next(self, challenge: bytes) -> None:
        """The broker is satisfied.

        Raises:
            AuthenticationError: it says nothing, which is a refusal.
        """
        if not challenge:
            raise AuthenticationError(
                f"the broker did not accept the AWS identity; {self.advice}", mechanism=_NAME, user=self.user
            )

    def _find_region(self) -> str:
        found = _REGION_OF_HOST.search(self._host.lower())
        region = found[1] if found else None
        region = region or self._environment.get("AWS_REGION") or self._environment.get("AWS_DEFAULT_REGION")
        if not region:
            raise AuthenticationError(
                f"the AWS region of the broker {self._host} is not known: it is not in its name; set AWS_REGION",
                mechanism=_NAME,
            )
        return region

    def __repr__(self) -> str:
        return f"<AwsMskIamMechanism with {self._host}>"


def signed_payload(host: str, region: str, identity: AwsIdentity, now: datetime) -> bytes:
    """The JSON document that a broker is shown."""
    moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    scope = f"{day}/{region}/{_SERVICE}/aws4_request"
    query = {
        "Action": _ACTION,
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{identity.access_key}/{scope}",
        "X-Amz-Date": moment,
        "X-Amz-Expires": _SECONDS,
        "X-Amz-SignedHeaders": "host",
    }
    if identity.session_token:
        query["X-Amz-Security-Token"] = identity.session_token
    encoded = "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))
    request = "\n".join(("GET", "/", encoded, f"host:{host}\n", "host", hashlib.sha256(b"").hexdigest()))
    hashed = hashlib.sha256(request.encode()).hexdigest()
    message = "\n".join((_ALGORITHM, moment, scope, hashed))
    payload = {
        "version": "2020_10_22",
        "host": host,
        "user-agent": f"penstock/{__version__}",
        "action": _ACTION,
        "x-amz-algorithm": _ALGORITHM,
        "x-amz-credential": query["X-Amz-Credential"],
        "x-amz-date": moment,
        "x-amz-signedheaders": "host",
        "x-amz-expires": _SECONDS,
        "x-amz-signature": _signature(identity.secret_key, (day, region, _SERVICE), message),
    }
    if identity.session_token:
        payload["x-amz-security-token"] = identity.session_token
    return json.dumps(payload, separators=(",", ":")).encode()


def _signature(secret_key: str, scope: tuple[str, ...], message: str) -> str:
    key = f"AWS4{secret_key}".encode()
    for part in (*scope, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, message.encode(), "sha256").hex()
