"""A sandbox service on this machine for as long as a `with` block lasts."""

import contextlib
from collections.abc import Iterator

from sandbox_service import launch


@contextlib.contextmanager
def local_service(
    *, slots: int | None = None, min_tier: str = "B", tier: str = ""
) -> Iterator[str]:
    """Starts the service as its own process, reached by this user alone, and yields its address.

    The service ends with the block, and also if this process is killed.

    Args:
      slots: runs at the same time; None: two more than processors.
      min_tier: refuse weaker isolation than this ("A", "B", "D"; sandbox_service/README.md).
      tier: take exactly this tier; "": the strongest that works.

    Raises:
      RuntimeError: the service did not start; with its own words.
    """
    with launch.service_process(slots=slots, min_tier=min_tier, tier=tier) as address:
        yield address
