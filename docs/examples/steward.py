"""Watch the context windows of all agents and compact each one before it is full.

This needs only the capability `participant/compact`; the agents need no code for it. The output is in
`.mew/logs/steward.log`.
"""

from mew_agent import Participant, Peer, PeerContext, PeerError, run

ENOUGH_TURNS = 3

me = Participant.from_environment()
asked: set[str] = set()


@me.on_context  # called with every report of every peer
async def keep_room(peer: Peer, context: PeerContext) -> None:
    """Compact once; again only after there was room."""
    turns = context.turns_to_compaction
    if turns is None or turns > ENOUGH_TURNS:
        asked.discard(peer.id)
    elif peer.id not in asked:
        asked.add(peer.id)
        print(await outcome(peer.id, turns), flush=True)


async def outcome(peer: str, turns: int) -> str:
    """Compact a peer's context and describe the result."""
    try:
        done = await me.compact(peer, reason=f"only {turns} turns left")
    except PeerError as error:
        return str(error)
    if done.skipped:
        return f"{peer} skipped it: {done.reason}"
    freed = "an unknown number of" if done.freed_tokens is None else f"{done.freed_tokens:,}"
    return f"{peer} freed {freed} tokens"


run(me.take_part)
