"""[pure] How the wire writes a moment. Reading the clock is the caller's business."""

from datetime import UTC, datetime


def wire_timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds and `Z`. The moment must know its time zone."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
