"""How fsspec and Delta's library open a place: what Spark has as `fs.*` settings, in their words.

Hadoop's settings come first, as in Spark; then the environment, which the libraries read.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from ebbtide.credentials import give_credentials, take_credentials
from ebbtide.errors import UsageError, hide
from ebbtide.hadoop import hadoop_settings
from ebbtide.locations import AZURE, GCS, HDFS, S3, StoreUrl, connection_string, parse_url

Settings = Mapping[str, str]
ANSWER_SECONDS = 20
"""How long to wait for the next bytes of an answer: a lease lasts 50 s, and is tried again."""
_SECRETS = ("secret", "account_key", "sas_token", "client_secret")


def fsspec_options(place: StoreUrl) -> dict[str, Any]:
    """The options with which fsspec opens a store; they may hold secrets."""
    of_kind = {S3: _s3, GCS: _gcs, AZURE: _azure, HDFS: _hdfs}
    options = of_kind[place.kind](place, hadoop_settings())
    hide(*(str(options[name]) for name in _SECRETS if options.get(name)))
    return options


def delta_location(location: str) -> tuple[str, dict[str, str]]:
    """The URL and the options with which Delta's library opens a table.

    The options may hold secrets. A path on a disk stays as it is.
    """
    location = take_credentials(location)
    place = parse_url(location)
    if place is None:
        return location, {}
    if place.kind == HDFS:  # it reads HADOOP_CONF_DIR itself
        return _hdfs_of_delta(place, location), {}
    _, given = give_credentials(location)
    of_kind = {S3: _s3_of_delta, GCS: _gcs_of_delta, AZURE: _azure_of_delta}
    options = of_kind[place.kind]({**fsspec_options(place), **given})
    return place.address, {name: value for name, value in options.items() if value}


def _s3(place: StoreUrl, settings: Settings) -> dict[str, Any]:
    def find(name: str) -> str | None:
        of_bucket = settings.get(f"fs.s3a.bucket.{place.container}.{name}")
        return of_bucket or settings.get(f"fs.s3a.{name}") or None

    def is_set(name: str, value: str) -> bool:  # as Hadoop reads a yes or no
        return (find(name) or "").strip().lower() == value

    options: dict[str, Any] = {}
    key, secret = find("access.key"), find("secret.key")
    if key and secret:
        options |= {"key": key, "secret": secret}
        if token := find("session.token"):
            options["token"] = token
    elif (find("aws.credentials.provider") or "").endswith("AnonymousAWSCredentialsProvider"):
        options["anon"] = True
    if endpoint := find("endpoint"):
        scheme = "http" if is_set("connection.ssl.enabled", "false") else "https"
        options["endpoint_url"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    if region := find("endpoint.region"):
        options["client_kwargs"] = {"region_name": region}
    if is_set("path.style.access", "true"):
        options["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    return options


def _s3_of_delta(options: Mapping[str, Any]) -> dict[str, str | None]:
    endpoint = options.get("endpoint_url") or os.environ.get("AWS_ENDPOINT_URL_S3")
    used = endpoint or os.environ.get("AWS_ENDPOINT_URL", "")
    return {
        "aws_access_key_id": options.get("key"),
        "aws_secret_access_key": options.get("secret"),
        "aws_session_token": options.get("token"),
        "aws_endpoint_url": endpoint,
        "aws_region": options.get("client_kwargs", {}).get("region_name"),
        "aws_skip_signature": "true" if options.get("anon") else None,
        "aws_virtual_hosted_style_request": "false" if options.get("config_kwargs") else None,
        "aws_allow_http": "true" if used.startswith("http://") else None,
    }


def _gcs(_: StoreUrl, settings: Settings) -> dict[str, Any]:
    keyfile = settings.get("fs.gs.auth.service.account.json.keyfile") or settings.get(
        "google.cloud.auth.service.account.json.keyfile"
    )
    emulated = "STORAGE_EMULATOR_HOST" in os.environ
    is_open = settings.get("fs.gs.auth.type") == "UNAUTHENTICATED" or emulated
    found: dict[str, Any] = {
        "requests_timeout": _timeout(),
        "token": keyfile or ("anon" if is_open else None),
        "project": settings.get("fs.gs.project.id"),
        "endpoint_url": settings.get("fs.gs.storage.root.url"),
    }
    return {name: value for name, value in found.items() if value}


def _timeout() -> Any:
    """A request of gcsfs that gets no answer must end before a lease does; a long one may go on."""
    with suppress(ImportError):  # the extra is missing: that is said when the store is opened
        from aiohttp import ClientTimeout

        return ClientTimeout(total=None, sock_connect=ANSWER_SECONDS, sock_read=ANSWER_SECONDS)
    return None


def _gcs_of_delta(options: Mapping[str, Any]) -> dict[str, str | None]:
    token = options.get("token")
    endpoint = options.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST", "")
    if endpoint and "://" not in endpoint:  # as gcsfs reads it
        endpoint = f"http://{endpoint}"
    return {
        "google_service_account": token if token != "anon" else None,
        "google_skip_signature": "true" if token == "anon" else None,
        "google_base_url": endpoint.rstrip("/"),
        "allow_http": "true" if endpoint.startswith("http://") else None,
    }


def _azure(place: StoreUrl, settings: Settings) -> dict[str, Any]:
    def find(name: str) -> str | None:
        hosts = (place.host, place.host.replace(".dfs.", ".blob.", 1))
        of_account = (settings.get(f"fs.azure.{name}.{host}") for host in hosts)
        return next(filter(None, of_account), None) or settings.get(f"fs.azure.{name}") or None

    blob_host = place.host.replace(".dfs.", ".blob.", 1)
    options: dict[str, Any] = {"account_name": place.account}
    if not blob_host.endswith(".core.windows.net"):
        options["account_host"] = blob_host
    sas = find("sas.fixed.token") or settings.get(f"fs.azure.sas.{place.container}.{blob_host}")
    if key := find("account.key"):
        options["account_key"] = key
    elif sas:
        options["sas_token"] = sas
    elif client := find("account.oauth2.client.id"):
        endpoint = find("account.oauth2.client.endpoint") or ""
        options |= {
            "client_id": client,
            "client_secret": find("account.oauth2.client.secret"),
            "tenant_id": urlsplit(endpoint).path.strip("/").partition("/")[0],
        }
    own = connection_string(os.environ)
    hide(own.get("AccountKey", ""), own.get("SharedAccessSignature", ""))
    if own and own.get("AccountName") != place.account:
        # adlfs would take that of the environment before any key
        start = f"AccountName={place.account};BlobEndpoint=https://{blob_host}"
        if key:
            options["connection_string"] = f"{start};AccountKey={key}"
        elif sas:
            options["connection_string"] = f"{start};SharedAccessSignature={sas.lstrip('?')}"
        else:
            _require_account(place, own)
    return options


def _require_account(place: StoreUrl, own: Mapping[str, str]) -> None:
    """Refuse a connection string of another account: adlfs would go there."""
    if (name := own.get("AccountName")) not in (None, place.account):
        raise UsageError(
            f"{place.address} is in the account {place.account}, but "
            f"AZURE_STORAGE_CONNECTION_STRING is of {name}.",
            "Unset it, or set it to that of the other account.",
        )


def _azure_of_delta(options: Mapping[str, Any]) -> dict[str, str | None]:
    # one of ours is there because that of the environment is of another account
    own = {} if "connection_string" in options else connection_string(os.environ)
    endpoint = own.get("BlobEndpoint")
    return {
        "azure_storage_account_name": options.get("account_name"),
        "azure_storage_account_key": options.get("account_key") or own.get("AccountKey"),
        "azure_storage_sas_key": options.get("sas_token") or own.get("SharedAccessSignature"),
        "azure_client_id": options.get("client_id"),
        "azure_client_secret": options.get("client_secret"),
        "azure_tenant_id": options.get("tenant_id"),
        "azure_endpoint": endpoint,
        "azure_allow_http": "true" if (endpoint or "").startswith("http://") else None,
    }


def _hdfs(place: StoreUrl, settings: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {"use_https": True} if place.https else {}
    if settings.get("hadoop.security.authentication") == "kerberos":
        return {**options, "kerberos": True}
    user = os.environ.get("HADOOP_USER_NAME")
    with suppress(OSError, KeyError, ImportError):  # a container's user may have no name
        user = user or getpass.getuser()
    return {**options, "user": user} if user else options


def _hdfs_of_delta(place: StoreUrl, location: str) -> str:
    """The URL with the name node's own address: by HTTP, the library asks only this machine."""
    if location.startswith("hdfs://") and not location.startswith("hdfs:///"):
        return location
    default = hadoop_settings().get("fs.defaultFS", "").rstrip("/")
    if default and parse_url(f"{default}/{place.path}") == place:
        return f"{default}/{place.path}"
    raise ValueError("Delta's library needs hdfs://HOST:PORT/PATH")
