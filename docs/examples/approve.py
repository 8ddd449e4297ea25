"""Approve harmless tool calls and ask about all others: `mew run approve.py`."""

import anyio

from mew_agent import Participant, ProposalMade, run

HARMLESS = {"count_words"}

me = Participant.from_environment()


@me.on_proposal
async def decide(proposal: ProposalMade) -> None:
    """Approve or reject one proposal; the next one waits until this returns."""
    if proposal.tool in HARMLESS:
        print(f"{proposal}: harmless", flush=True)
        await proposal.fulfil()
        return
    answer = await anyio.to_thread.run_sync(input, f"{proposal}. Approve? [y/N] ", abandon_on_cancel=True)
    if not proposal.is_open:
        print("the proposal was withdrawn or decided", flush=True)
    elif answer.strip().lower() in ("y", "yes"):
        await proposal.fulfil()
    else:
        await proposal.reject(answer.strip() or "disagree")


async def main() -> None:
    """Decide about proposals until the space ends."""
    async with me:
        print("waiting for proposals; press Ctrl-C to stop", flush=True)
        await me.run_forever()


run(main)
