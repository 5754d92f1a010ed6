"""Regenerates sandbox_pb2.py, sandbox_pb2.pyi and sandbox_pb2_grpc.py from sandbox.proto.

python -m sandbox_service.proto.generate        (needs grpcio-tools, of the dev extra)
"""

import pathlib
import sys

PACKAGE_PARENT = pathlib.Path(__file__).resolve().parents[2]


def main() -> int:
    from grpc_tools import protoc

    # Paths from the package's parent make protoc write absolute imports.
    return int(
        protoc.main(
            [
                "protoc",
                f"-I{PACKAGE_PARENT}",
                f"--python_out={PACKAGE_PARENT}",
                f"--pyi_out={PACKAGE_PARENT}",
                f"--grpc_python_out={PACKAGE_PARENT}",
                "sandbox_service/proto/sandbox.proto",
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
