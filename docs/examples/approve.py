"""Decide about what others propose: `mew run approve.py`. Counting is harmless; about all else you are asked."""

import anyio

from mew_agent import Participant, ProposalMade, run

HARMLESS = {"count_words"}

me = Participant.from_environment()


@me.on_proposal
async def decide(proposal: ProposalMade) -> None:
    """Proposals are decided one after the other, in the order in which they came."""
    if proposal.tool in HARMLESS:
        print(f"{proposal}: harmless", flush=True)
        await proposal.fulfil()
        return
    answer = await anyio.to_thread.run_sync(input, f"{proposal}. May it? [y/N] ", abandon_on_cancel=True)
    if not proposal.is_open:
        print("nobody waits for it any more", flush=True)
    elif answer.strip().lower() in ("y", "yes"):
        await proposal.fulfil()
    else:
        await proposal.reject(answer.strip() or "disagree")


async def main() -> None:
    """Decide until the space ends."""
    async with me:
        print("waiting for proposals; Ctrl-C ends it", flush=True)
        await me.run_forever()


run(main)
