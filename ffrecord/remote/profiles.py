"""Credentials from the profiles of the AWS command line.

obstore reads the environment by itself, but not `~/.aws`. Keys in a profile are used here. Profiles
with single sign-on or roles need boto3.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from typing import Any

from ffrecord.errors import MissingPackageError, UrlError
from ffrecord.remote import endpoints

_KEYS = {
    "aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token", "region": "region", "endpoint_url": "endpoint",
}  # fmt: skip
_OWN = ("credential_provider", "skip_signature", "access_key_id", "aws_access_key_id",
        "aws_skip_signature")  # fmt: skip
_BY_ROLE = ("role_arn", "sso_session", "sso_start_url", "credential_process")


def completed(config: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the options of S3 with those of the profile, and a provider of credentials or None.

    Options that the caller passed come first, then the environment, then the profile.
    """
    config = dict(config)
    asked = config.pop("profile", None)
    profile = asked or os.environ.get("AWS_PROFILE")
    from_environment = asked is None and "AWS_ACCESS_KEY_ID" in os.environ
    if from_environment or any(name in config for name in _OWN):
        return config, None
    found = _profile(profile or "default")
    if not found:
        if profile:
            whose = "check its name" if asked else "check AWS_PROFILE"
            raise UrlError(f"there is no profile {profile!r} in ~/.aws; {whose}")
        return config, None
    provider = None
    if any(name in found for name in _BY_ROLE):
        provider = _provider(profile or "default")
    if endpoints.is_known(config):
        found.pop("endpoint_url", None)
    for name, ours in _KEYS.items():
        if name in found and f"AWS_{ours.upper()}" not in os.environ:
            config.setdefault(ours, found[name])
    return config, provider


def _profile(name: str) -> dict[str, str]:
    """Return the settings of a profile from both files of the AWS command line."""
    found: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", "default" if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        path = os.environ.get(variable) or os.path.expanduser(f"~/.aws/{file}")
        parser = configparser.RawConfigParser(default_section="")
        try:
            parser.read(path)
        except (configparser.Error, OSError, UnicodeDecodeError) as error:
            kind = type(error).__name__
            raise UrlError(f"{path}: cannot be read ({kind}); correct this file") from None
        if parser.has_section(section):
            found |= dict(parser.items(section))
    return found


def _provider(name: str) -> Any:
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise MissingPackageError(
            f"the profile {name} uses a role or single sign-on, which needs the package boto3; "
            "run: pip install boto3"
        ) from error
    return Boto3CredentialProvider(boto3.Session(profile_name=name))
