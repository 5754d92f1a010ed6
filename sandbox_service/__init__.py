"""A sandbox service that runs untrusted Python and reports what it returned."""
