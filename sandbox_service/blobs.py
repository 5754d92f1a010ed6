"""Sources by digest: sent once with PutBlobs, named by SHA-256 afterwards. A bounded store."""

import hashlib
from collections import OrderedDict

from sandbox_service.proto import sandbox_pb2 as pb

_ENTRY_OVERHEAD_BYTES = 200


class MissingBlob(Exception):
    """A digest that is not in the store: never sent, or dropped to make room."""


class BlobStore:
    """Blobs by digest, the least recently used ones dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._blobs: OrderedDict[bytes, bytes] = OrderedDict()

    def put(self, data: bytes) -> bytes:
        """Stores a blob and returns its digest. Raises ValueError if it can never fit."""
        size = len(data) + _ENTRY_OVERHEAD_BYTES
        if size > self.max_bytes:
            raise ValueError(f"a blob of {len(data)} bytes is over the store's {self.max_bytes}")
        digest = hashlib.sha256(data).digest()
        if digest in self._blobs:
            self._blobs.move_to_end(digest)
            return digest
        self._blobs[digest] = data
        self.num_bytes += size
        while self.num_bytes > self.max_bytes:
            _, dropped = self._blobs.popitem(last=False)
            self.num_bytes -= len(dropped) + _ENTRY_OVERHEAD_BYTES
        return digest

    def resolve(self, source: pb.Source, what: str) -> None:
        """Replaces a digest by the text it stands for. Raises MissingBlob."""
        if source.WhichOneof("source") != "digest":
            return
        data = self._blobs.get(source.digest)
        if data is None:
            raise MissingBlob(
                f"{what}: no blob with SHA-256 {source.digest.hex()[:64]} here; send it with "
                f"PutBlobs (again) and repeat the request"
            )
        self._blobs.move_to_end(source.digest)
        source.inline = data
