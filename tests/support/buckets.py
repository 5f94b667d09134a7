"""A bucket on loopback: a real server of S3."""

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from support.services import starts


@contextmanager
def serving() -> Iterator[dict[str, str]]:
    """An S3 server with the bucket `team`, as the variables that lead there."""
    from moto.server import ThreadedMotoServer

    starts("a bucket")

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        env = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "who", "AWS_SECRET_ACCESS_KEY": "hush",
            "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true", "AGAC_REMOTE": "s3://team/reviews",
        }  # fmt: skip
        reset = urllib.request.Request(f"{env['AWS_ENDPOINT_URL']}/moto-api/reset", method="POST")
        urllib.request.urlopen(reset).close()  # all servers of a process share what they hold
        request = urllib.request.Request(f"{env['AWS_ENDPOINT_URL']}/team", method="PUT")
        request.add_header(
            "Authorization",
            "AWS4-HMAC-SHA256 Credential=who/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x",
        )
        urllib.request.urlopen(request).close()
        yield env
    finally:
        server.stop()
