"""A steward: watches how full everybody's context window is, and has a peer compact before it runs full.

Whoever has the capability `participant/compact` can do this; the peer needs no code for it. What is printed is in
`logs/steward.log`.
"""

from mew_agent import Participant, Peer, PeerContext, PeerError, run

ENOUGH_TURNS = 3

me = Participant.from_environment()
asked: set[str] = set()


@me.on_context  # called with every report of every peer
async def keep_room(peer: Peer, context: PeerContext) -> None:
    """Ask once, and again only after there was room."""
    turns = context.turns_to_compaction
    if turns is None or turns > ENOUGH_TURNS:
        asked.discard(peer.id)
    elif peer.id not in asked:
        asked.add(peer.id)
        print(await outcome(peer.id, turns), flush=True)


async def outcome(peer: str, turns: int) -> str:
    """Have a peer compact, and say what came of it."""
    try:
        done = await me.compact(peer, reason=f"only {turns} turns left")
    except PeerError as error:
        return str(error)
    if done.skipped:
        return f"{peer} skipped it: {done.reason}"
    freed = "an untold number of" if done.freed_tokens is None else f"{done.freed_tokens:,}"
    return f"{peer} freed {freed} tokens"


run(me.take_part)
