"""Style sheets, scripts and icons: read once, and served compressed under a path that changes with their content."""

import gzip
import hashlib
import mimetypes
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from latermq.http.access_log import STATIC_PREFIX

FOLDER = Path(__file__).parent / "static"
IMMUTABLE = "public, max-age=31536000, immutable"
_SERVED = {".css", ".js", ".svg", ".png"}
_BUILD_CHARS = 12


class Asset(NamedTuple):
    """A file as it is sent."""

    content: bytes
    compressed: bytes
    etag: str
    media_type: str


class Assets:
    """All files of the console."""

    def __init__(self) -> None:
        self._files = {path.relative_to(FOLDER).as_posix(): _read(path) for path in _found()}
        digest = hashlib.sha256()
        for name, asset in sorted(self._files.items()):
            digest.update(f"{name} {asset.etag}\n".encode())
        # A path has the digest of all files, so that a script finds the others of its release by a relative path.
        self._prefix = f"{STATIC_PREFIX}{digest.hexdigest()[:_BUILD_CHARS]}/"

    @property
    def names(self) -> list[str]:
        """The names of all files."""
        return sorted(self._files)

    @property
    def routes(self) -> list[Route]:
        return [Route(STATIC_PREFIX + "{build}/{name:path}", self._serve, methods=["GET"])]

    def url(self, name: str) -> str:
        """Return the path of a file."""
        assert name in self._files, name
        return self._prefix + name

    async def _serve(self, request: Request) -> Response:
        asset = self._files.get(request.path_params["name"])
        if asset is None:
            return Response("no such file", HTTPStatus.NOT_FOUND, media_type="text/plain")
        is_current = request.url.path.startswith(self._prefix)
        # A path of another release is not kept: a browser may ask for it while a console is being replaced.
        headers = {"ETag": asset.etag, "Cache-Control": IMMUTABLE if is_current else "no-cache"}
        headers["Vary"] = "Accept-Encoding"
        if asset.etag in request.headers.get("if-none-match", ""):
            return Response(None, HTTPStatus.NOT_MODIFIED, headers)
        if accepts_gzip(request):
            return Response(
                asset.compressed, headers=headers | {"Content-Encoding": "gzip"}, media_type=asset.media_type
            )
        return Response(asset.content, headers=headers, media_type=asset.media_type)


def accepts_gzip(request: Request) -> bool:
    """Whether a client decompresses answers."""
    offers = request.headers.get("accept-encoding", "").lower().split(",")
    return any(offer.strip().replace(" ", "") in ("gzip", "gzip;q=1.0", "gzip;q=1") for offer in offers)


def _found() -> Iterator[Path]:
    return (path for path in FOLDER.rglob("*") if path.suffix in _SERVED)


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    media_type = mimetypes.types_map.get(path.suffix, "application/octet-stream")
    if path.suffix == ".js":
        media_type = "text/javascript"
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Asset(content, gzip.compress(content, 9, mtime=0), etag, media_type)
