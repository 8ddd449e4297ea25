"""Draw the three journeys of docs/architecture.md as sequence diagrams.

python docs/pictures/make_journeys.py
"""

from html import escape
from pathlib import Path

HERE = Path(__file__).parent
COLUMN, ROW, LEFT, TOP = 178, 40, 92, 64
STYLE = "font-family='system-ui, sans-serif' font-size='12.5'"

Step = tuple[str, str, str]
"""From, to, what; equal names are work inside one of them."""

JOURNEYS: dict[str, tuple[str, tuple[str, ...], tuple[Step, ...]]] = {
    "chat": (
        "A chat: from the sender to the answer",
        ("sender", "gateway", "agent", "conversation", "model"),
        (
            ("sender", "gateway", "chat"),
            ("gateway", "gateway", "check, store, number"),
            ("gateway", "agent", "chat, to all members"),
            ("agent", "agent", "queue in the inbox"),
            ("agent", "conversation", "begin a turn"),
            ("conversation", "conversation", "ask the policy, make room"),
            ("conversation", "model", "request"),
            ("model", "conversation", "stream of deltas"),
            ("conversation", "agent", "deltas"),
            ("agent", "gateway", "reasoning stream"),
            ("model", "conversation", "reply with usage"),
            ("conversation", "agent", "tool calls, or the answer"),
            ("agent", "gateway", "chat with the answer"),
            ("gateway", "sender", "chat"),
        ),
    ),
    "usage": (
        "A usage chunk: from the provider to the board",
        ("model", "conversation", "tracker", "agent", "gateway", "readers"),
        (
            ("model", "conversation", "last chunk with usage"),
            ("conversation", "tracker", "call_kept"),
            ("tracker", "tracker", "ledger: price the interval"),
            ("conversation", "tracker", "decide"),
            ("tracker", "conversation", "actions for later"),
            ("conversation", "agent", "StatusChanged"),
            ("agent", "gateway", "participant/status"),
            ("gateway", "gateway", "post on the board"),
            ("gateway", "readers", "envelope, event, board"),
        ),
    ),
    "compaction": (
        "A compaction: from the request to the report",
        ("sender", "agent", "conversation", "planner", "model", "tracker"),
        (
            ("sender", "agent", "participant/compact"),
            ("agent", "sender", "status: compacting"),
            ("agent", "conversation", "compact"),
            ("conversation", "conversation", "wait for the running call"),
            ("conversation", "planner", "plan_compaction"),
            ("planner", "conversation", "plan, or nothing to do"),
            ("conversation", "model", "summary request"),
            ("model", "conversation", "summary"),
            ("conversation", "tracker", "apply: cut, price the rest"),
            ("conversation", "agent", "tokens freed"),
            ("agent", "sender", "compact-done, compacted"),
        ),
    ),
}


def draw(title: str, columns: tuple[str, ...], steps: tuple[Step, ...]) -> str:
    """The diagram as SVG text."""
    width = LEFT * 2 + COLUMN * (len(columns) - 1)
    height = TOP + ROW * (len(steps) + 1)
    at = {name: LEFT + COLUMN * number for number, name in enumerate(columns)}
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img' {STYLE}>",
        f"<title>{escape(title)}</title>",
        f"<desc>{escape('; '.join(f'{source} to {target}: {text}' for source, target, text in steps))}</desc>",
        "<defs><marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>",
        "<path d='M0 0 L8 4 L0 8 z' fill='#44525f'/></marker></defs>",
        f"<rect width='{width}' height='{height}' rx='8' fill='#fff'/>",
    ]
    for name, x in at.items():
        parts += [
            f"<line x1='{x}' y1='46' x2='{x}' y2='{height - 14}' stroke='#c6d0d9' stroke-dasharray='3 4'/>",
            f"<rect x='{x - 62}' y='14' width='124' height='32' rx='5' fill='#d8efe9' stroke='#2f7f70'/>",
            f"<text x='{x}' y='35' text-anchor='middle' font-weight='600' fill='#0d443a'>{escape(name)}</text>",
        ]
    for number, (source, target, text) in enumerate(steps):
        y = TOP + ROW * (number + 0.7)
        here, there = at[source], at[target]
        if source == target:
            parts.append(f"<rect x='{here - 5}' y='{y - 13}' width='10' height='22' rx='3' fill='#f3c9a5'/>")
            middle, anchor = here + 12.0, "start"
        else:
            end = there - 4 if there > here else there + 4
            parts.append(f"<line x1='{here}' y1='{y}' x2='{end}' y2='{y}' stroke='#44525f' marker-end='url(#head)'/>")
            middle, anchor = (here + there) / 2, "middle"
        dy = y + 3 if source == target else y - 6
        parts.append(
            f"<text x='{middle:g}' y='{dy:g}' text-anchor='{anchor}' fill='#17212b' stroke='#fff' stroke-width='4'"
            f" paint-order='stroke'>{escape(text)}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    for name, journey in JOURNEYS.items():
        (HERE / f"journey-{name}.svg").write_text(draw(*journey), encoding="utf-8")
