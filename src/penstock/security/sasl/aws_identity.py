# SPDX-License-Identifier: Apache-2.0
"""Who the client is at AWS: access key, secret key, and the session token of temporary ones.

In this order: what the user's provider gives; botocore, where it is installed, with all that it knows (roles, single
sign-on, web identities); else the environment, the file of shared credentials, the endpoint of a container (ECS, EKS)
and that of the machine (EC2). Everything here may block.
"""

from __future__ import annotations

import configparser
import ipaddress
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit

from penstock._escaping import told
from penstock._locks import new_lock
from penstock.config.files import UnreadableError, read_file
from penstock.errors import AuthenticationError, ConfigError
from penstock.security.quoting import quoted
from penstock.security.sasl.settings import AwsSettings

_MECHANISM: Final = "AWS_MSK_IAM"
_MOST_BYTES: Final = 100_000
# Python's parser takes the square of a line's length.
_MOST_LINE: Final = 8_192
_CONTAINER_HOST: Final = "http://169.254.170.2"
_MACHINE_HOST: Final = "http://169.254.169.254"
# Of the agents of ECS and EKS.
_CONTAINER_ADDRESSES: Final = ("169.254.170.2", "169.254.170.23", "fd00:ec2::23")
_HTTP_TIMEOUT: Final = 2.0
# Temporary keys are replaced so long before they expire.
_SPARE_SECONDS: Final = 300.0

# Method, URL, headers -> the body; raises OSError.
Fetch = Callable[[str, str, Mapping[str, str]], bytes]


@dataclass(frozen=True, slots=True)
class AwsIdentity:
    """Keys that requests are signed with.

    Attributes:
        access_key: names the keys; no secret.
        secret_key: the secret.
        session_token: of temporary keys; as secret.
        expires_at: of temporary keys, in seconds since the epoch; None where nobody knows.
    """

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_at: float | None = None


class AwsIdentities:
    """Finds the identity of one client, and keeps it while it is good. Methods are called on any thread."""

    def __init__(
        self,
        settings: AwsSettings,
        provider: object | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        self._settings = settings
        self._environment = os.environ if environment is None else environment
        self._fetch = _fetch if fetch is None else fetch
        self._provider = _provider_of(provider) if provider is not None else None
        self._session: Any = None if provider is not None else self._botocore_session()
        if self._session is None and provider is None and settings.role_arn:
            raise ConfigError(
                "awsRoleArn of AWS_MSK_IAM needs the package botocore: pip install botocore",
                "sasl.jaas.config",
            )
        self._lock: Any = new_lock()
        self._known: AwsIdentity | None = None  # under the lock

    def find(self) -> AwsIdentity:
        """The keys to sign with.

        Raises:
            AuthenticationError: there are none.
        """
        with self._lock:
            known = self._known
        left = -1.0 if known is None or known.expires_at is None else known.expires_at - time.time()
        if known is not None and left > _SPARE_SECONDS:
            return known
        try:
            found = self._look_up()
        except AuthenticationError as error:
            failure = error
        except Exception as error:  # noqa: BLE001  # of botocore, or of the user's provider
            failure = _error(f"the AWS credentials cannot be found: {told(error)}")
        else:
            with self._lock:
                self._known = found
            return found
        if known is not None and left > 0:
            return known
        raise failure

    def _look_up(self) -> AwsIdentity:
        if self._provider is not None:
            return _identity_from(self._provider())
        if self._session is not None:
            return self._from_botocore()
        for source in (self._from_environment, self._from_file, self._from_container, self._from_machine):
            found = source()
            if found is not None:
                return found
        raise _error(
            "no AWS credentials were found in the environment (AWS_ACCESS_KEY_ID), in the file of shared credentials, "
            "or at the endpoints of a container or an EC2 machine. Other sources (roles, single sign-on) need the "
            "package botocore: pip install botocore"
        )

    # ---- botocore

    def _botocore_session(self) -> Any:
        try:
            import botocore.session
        except ImportError:
            return None
        return botocore.session.Session(profile=self._settings.profile)

    def _from_botocore(self) -> AwsIdentity:
        settings = self._settings
        if settings.role_arn is None:
            credentials = self._session.get_credentials()
            if credentials is None:
                raise _error("botocore finds no AWS credentials: set AWS_PROFILE, or run `aws configure`")
            return _identity_from(credentials)
        client = self._session.create_client("sts", region_name=settings.sts_region)
        answer = client.assume_role(
            RoleArn=settings.role_arn, RoleSessionName=settings.role_session_name or "penstock"
        )
        return _identity_from_json(answer["Credentials"], "STS")

    # ---- the standard library alone

    def _from_environment(self) -> AwsIdentity | None:
        access = self._environment.get("AWS_ACCESS_KEY_ID")
        secret = self._environment.get("AWS_SECRET_ACCESS_KEY")
        if not access or not secret or self._settings.profile is not None:
            return None
        return AwsIdentity(access, secret, self._environment.get("AWS_SESSION_TOKEN") or None)

    def _from_file(self) -> AwsIdentity | None:
        path = self._environment.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.expanduser(
            "~/.aws/credentials"
        )
        profile = self._settings.profile or self._environment.get("AWS_PROFILE") or "default"
        parser = configparser.RawConfigParser()
        if not os.path.lexists(path):
            return None
        try:
            text = read_file(path, _MOST_BYTES).decode("utf-8")
            if max(map(len, text.splitlines()), default=0) > _MOST_LINE:
                raise _error(f"the file {path} has a line of more than {_MOST_LINE} characters")
            parser.read_string(text)
        except UnreadableError as error:
            raise _error(f"the file {path} {error}") from None
        except (UnicodeDecodeError, configparser.Error) as error:
            # The text of the error may hold the line that cannot be read, and so a key.
            place = (
                f" (line {error.lineno})" if isinstance(error, configparser.MissingSectionHeaderError) else ""
            )
            raise _error(f"the file {path} cannot be read{place}: {type(error).__name__}") from None
        if not parser.has_section(profile):
            if self._settings.profile is not None:
                raise _error(f"the file {path} has no profile {quoted(profile)}")
            return None
        section = parser[profile]
        access, secret = section.get("aws_access_key_id"), section.get("aws_secret_access_key")
        if not access or not secret:
            return None
        return AwsIdentity(access, secret, section.get("aws_session_token") or None)

    def _from_container(self) -> AwsIdentity | None:
        relative = self._environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        url = f"{_CONTAINER_HOST}{relative}" if relative else None
        url = url or self._environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        if not url:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise _error("AWS_CONTAINER_CREDENTIALS_FULL_URI must begin with http:// or https://")
        if parts.scheme != "https" and not _is_local(parts.hostname or ""):
            raise _error("AWS_CONTAINER_CREDENTIALS_FULL_URI names another machine without https")
        token = self._container_token()
        headers = {"Authorization": token} if token else {}
        try:
            body = self._fetch("GET", url, headers)
        except OSError as error:
            raise _error(f"the container's endpoint for credentials cannot be asked: {_why(error)}") from None
        return _identity_from_json(_parsed(body), "the container's endpoint")

    def _container_token(self) -> str:
        name = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
        path = self._environment.get(name)
        if path:
            try:
                token = read_file(path, _MOST_BYTES).decode("latin-1")
            except UnreadableError as error:
                raise _error(f"the file {path} of {name} {error}") from None
        else:
            name = "AWS_CONTAINER_AUTHORIZATION_TOKEN"
            token = self._environment.get(name, "")
        return _header(token, name)

    def _from_machine(self) -> AwsIdentity | None:
        if self._environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            return None
        base = f"{_MACHINE_HOST}/latest"
        try:
            limit = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
            token = self._fetch("PUT", f"{base}/api/token", limit).decode("latin-1")
            headers = {"X-aws-ec2-metadata-token": _header(token, "the machine's endpoint")}
            where = f"{base}/meta-data/iam/security-credentials/"
            role = self._fetch("GET", where, headers).decode("ascii").split("\n")[0].strip()
            if not role:
                return None
            return _identity_from_json(
                _parsed(self._fetch("GET", where + quote(role, safe="+=,.@_-"), headers)),
                "the machine's endpoint",
            )
        except (OSError, UnicodeDecodeError):
            return None  # not on a machine of EC2, which is usual


def _provider_of(provider: object) -> Callable[[], Any]:
    get = getattr(provider, "get_credentials", None)  # a session of boto3 or botocore
    if callable(get):
        found: Callable[[], Any] = get
        return found
    if callable(provider):
        return provider
    return lambda: provider  # the credentials themselves


def _identity_from(given: Any) -> AwsIdentity:
    """From botocore's credentials, or (access key, secret key[, session token])."""
    frozen = getattr(given, "get_frozen_credentials", None)
    if callable(frozen):
        given = frozen()
    if isinstance(given, tuple | list) and not hasattr(given, "access_key"):
        values = (*given, None)[:3]
    else:
        values = tuple(getattr(given, name, None) for name in ("access_key", "secret_key", "token"))
    if len(values) == 3:
        access, secret, token = values
        if isinstance(access, str) and isinstance(secret, str) and isinstance(token, str | None) and access:
            return AwsIdentity(access, secret, token or None)
    raise _error(
        f"the provider of AWS credentials gave {type(given).__name__}, where botocore's credentials, or a tuple of "
        "access key, secret key and perhaps session token are expected"
    )


def _identity_from_json(answer: Mapping[str, Any], whose: str) -> AwsIdentity:
    access, secret = answer.get("AccessKeyId"), answer.get("SecretAccessKey")
    token = answer.get("Token") or answer.get("SessionToken")
    if not isinstance(access, str) or not isinstance(secret, str) or not isinstance(token, str | None):
        raise _error(f"the answer of {whose} has no AccessKeyId and SecretAccessKey")
    expires = answer.get("Expiration")
    try:
        moment = datetime.fromisoformat(expires) if isinstance(expires, str) else expires
    except ValueError:
        moment = None
    expires_at = moment.timestamp() if isinstance(moment, datetime) else None
    return AwsIdentity(access, secret, token, expires_at)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise _error("the answer of an endpoint for AWS credentials is not a JSON object")
    return answer


def _header(token: str, whose: str) -> str:
    """A token as a header takes it. Files and variables often end in a line end."""
    token = token.strip()
    if not (token.isascii() and token.isprintable()):
        raise _error(f"the token of {whose} has characters that no HTTP header can have")
    return token


def _is_local(host: str) -> bool:
    if host in ("localhost", *_CONTAINER_ADDRESSES):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name: its owner decides where it leads


def _why(error: OSError) -> str:
    """What went wrong, in words of the system. Others may hold what was sent."""
    reason = getattr(error, "reason", error)
    return getattr(reason, "strerror", None) or type(reason).__name__


def _fetch(method: str, url: str, headers: Mapping[str, str]) -> bytes:
    import http.client
    import urllib.request

    from penstock.security.http import exchange

    request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310  # http(s), see above
    try:
        # No proxy: these addresses are of this machine.
        answer = exchange(request, seconds=_HTTP_TIMEOUT, most=_MOST_BYTES, direct=True)
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(0, f"its answer is not HTTP ({type(error).__name__})") from None
    if answer.status != 200:
        raise OSError(0, f"it answered {answer.status}")
    if len(answer.body) > _MOST_BYTES:
        raise OSError(0, f"its answer has more than {_MOST_BYTES} bytes")
    return answer.body


def _error(text: str) -> AuthenticationError:
    return AuthenticationError(text, mechanism=_MECHANISM)
