"""What a MEW v0.4 gateway owes its clients, one rule an id. Each has its tests in this folder, and each test its rule.

`source` says where a rule comes from: `spec` and a section of the specification, `reference` for what the TypeScript
gateway does and its clients rely on, `decision` and a number for what is settled in docs/reference/wire.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Rule:
    """One requirement."""

    source: str
    text: str


RULES = {
    # Coming in
    "join.frame": Rule("reference", "A join frame as the first message brings a welcome."),
    "join.envelope": Rule("reference; decision 1", "An envelope system/join does too, in every spelling of its keys."),
    "join.header": Rule("spec 5.1; decision 1", "So does a bearer header alone; a join frame after it welcomes again."),
    "join.any-path": Rule("reference; decision 10", "WebSocket is served at every path, with or without a query."),
    "join.pipelined": Rule("reference", "Messages right behind the join frame are worked on, in order."),
    "join.token": Rule("spec 4.3; decision 2", "An unknown or foreign token brings unauthorized and close 4401."),
    "join.space": Rule("decision 2", "An unknown space brings space_not_found and close 4404."),
    "join.first": Rule("decision 22", "Whoever speaks before it joined is told not_joined."),
    "join.timeout": Rule("decision 1", "A socket that does not join in time is told and closed."),
    "join.superseded": Rule(
        "decision 2", "An agent's newest socket counts; the older is told, stays open, hears nothing."
    ),
    "join.people": Rule("decision 2", "A person may hold several sockets at once."),
    # Welcome and presence
    "welcome.contents": Rule("spec 3.8.1", "A welcome names you, your capabilities, the others and the open streams."),
    "welcome.unicast": Rule("spec 3.8.1", "A welcome goes to the joiner alone."),
    "welcome.baseline": Rule("decision 27", "mcp/response is always among the capabilities that others see."),
    "welcome.star": Rule(
        "decision 20", "Beside * stands **, which clients of the reference need to see to send more than one segment."
    ),
    "presence.join-leave": Rule("spec 3.7", "Others hear of a joining with its capabilities and of a leaving."),
    # The envelope
    "envelope.filled": Rule("reference", "protocol, id, ts and from are filled in when missing or null."),
    "envelope.kept": Rule("spec 3", "What the sender wrote, unknown keys included, arrives unchanged."),
    "envelope.from": Rule("spec 4.3; decision 3", "A from that is not the sender's brings identity_mismatch."),
    "envelope.version": Rule("spec 6; decision 6", "v0.3 and v0.4 pass as written, anything else is refused."),
    "envelope.lists": Rule("spec 3; decision 7", "A bare string in to or correlation_id becomes a list."),
    "envelope.compact": Rule("reference; decision 28", "JSON is compact, UTF-8 and free of NaN."),
    "envelope.kind": Rule("spec 3", "An envelope without kind is refused."),
    # Routing
    "routing.everybody": Rule(
        "spec 5.4; decision 5", "Every envelope reaches every member, its sender too, whatever to says."
    ),
    "routing.order": Rule(
        "spec 10.1; decision 13", "Everybody hears one order; of one sender, frames and envelopes mixed."
    ),
    "routing.system": Rule(
        "spec 4.1; decision 4", "system/* is refused from participants, system/register in its own words."
    ),
    "routing.heartbeat": Rule("reference; decision 4", "A heartbeat needs no capability and goes nowhere."),
    "routing.chat-text": Rule("spec 3.4", "A chat without text is refused."),
    "routing.mcp-method": Rule("spec 3.1.1", "An mcp/request without method is refused."),
    # Errors
    "error.full": Rule(
        "spec 3.8.2; decision 22", "An error is a whole envelope to the sender alone, naming the offender."
    ),
    "error.violation": Rule("spec 3.8.2", "A violation says what was tried and what is allowed."),
    "error.garbage": Rule("decision 22", "What cannot be read brings one error and costs nothing more."),
    # Capabilities
    "capability.payload": Rule("spec 4.1; decision 20", "Payload patterns are matched in depth, with globs and lists."),
    "capability.to": Rule("spec 4.1; decision 20", "to in a capability must cover every addressee."),
    "capability.grant": Rule(
        "spec 3.6.1", "A grant counts at once; its recipient is welcomed anew before all hear of it."
    ),
    "capability.cumulative": Rule("reference", "Grants add up."),
    "capability.own": Rule("spec 3.6.8; decision 9", "Nobody grants what it does not hold."),
    "capability.recipient": Rule(
        "spec 3.6.4; decision 9", "A recipient may be named by id or display name; a stranger is an error."
    ),
    "capability.revoke": Rule("spec 3.6.2; decision 9", "A revocation by grant or by pattern counts at once."),
    "capability.ack": Rule("spec 3.6.3", "A grant-ack is the recipient's own and goes to everybody."),
    "capability.end": Rule("reference", "Grants end some time after their recipient left."),
    # Proposals
    "proposal.fulfil": Rule("spec 3.2.1", "Proposal, request and response pass with their correlation."),
    "proposal.withdraw": Rule("spec 3.3.1", "Only its proposer withdraws a proposal."),
    "proposal.reject": Rule("spec 3.3.2", "A rejection names its proposal; anybody with the capability may reject."),
    # Space management
    "space.invite": Rule("spec 3.6.5", "An invitation makes a place and a token that work, now and after leaving."),
    "space.invite-ack": Rule(
        "spec 3.6.6; decision 10", "The token is told to the inviter alone, others hear of an invitation."
    ),
    "space.invite-again": Rule("reference", "Inviting somebody who is there brings already_exists."),
    "space.invite-name": Rule("reference", "A name that could leave its folder is refused."),
    "space.kick": Rule("spec 3.6.7; decision 8", "Who is kicked hears it, is closed with 4403 and cannot come back."),
    # Participant control
    "control.pause": Rule(
        "spec 3.9.1; decision 19", "A paused participant's work is refused, its acknowledgements pass."
    ),
    "control.resume": Rule("spec 3.9.2", "A resume from another, or the end of the timeout, ends a pause."),
    "control.shutdown": Rule("spec 3.9.10", "After a shutdown a participant is refused until it joins again."),
    "control.pause-told": Rule(
        "decision 19", "Who joins while it is paused is told so by the gateway, with the time left."
    ),
    "control.board": Rule("reference", "The last status of everybody is told to late joiners."),
    # Streams
    "stream.open": Rule("spec 3.10.2", "A request opens a stream that everybody hears of before the request itself."),
    "stream.frames": Rule(
        "spec 3.10.3; decision 13", "Frames are forwarded as they came, to everybody, their writer too."
    ),
    "stream.targets": Rule("reference", "With targets, frames reach those alone; an absent target is refused."),
    "stream.unauthorized": Rule("spec 3.10.5", "A frame by somebody who may not write is refused."),
    "stream.grant": Rule(
        "spec 3.10.5; decision 12", "The owner lets others write and takes it back; all hear the outcome."
    ),
    "stream.transfer": Rule("spec 3.10.7", "The owner gives a stream away and may then write no more."),
    "stream.owner-only": Rule("spec 3.10.5; decision 12", "Others are refused, as are strangers as beneficiaries."),
    "stream.close": Rule(
        "spec 3.10.4; decision 11", "Owner and writers close a stream by any of its names; nobody else does."
    ),
    "stream.late": Rule(
        "spec 3.10.8", "A late joiner learns open streams with their metadata; nobody forges the gateway's keys."
    ),
    "stream.relayed": Rule("reference", "A participant's own stream/open and an unknown stream/close are passed on."),
    "stream.owner-gone": Rule("decision 14", "The streams of an owner that stays away are closed."),
    # HTTP
    "http.health": Rule("reference", "Health is open and counts spaces and clients."),
    "http.participants": Rule("reference", "Participants lists everybody with a place and who is here."),
    "http.post": Rule("spec 5.3", "An envelope by HTTP takes the way of one by a socket."),
    "http.refusals": Rule("spec 5.3; decision 29", "Refusals have fitting statuses and JSON bodies."),
    "http.answers": Rule(
        "reference", "Streams, invitations and changes of rights answer with what they brought about."
    ),
    "http.poll": Rule("spec 5.3; decision 23", "What was said can be asked for from a place on."),
    "http.virtual": Rule(
        "reference", "A participant with output_log is written to that file, from its first word by HTTP."
    ),
    "http.events": Rule(
        "decision 23", "Server-sent events bring the board, then what is said, and go on behind the last one seen."
    ),
    # Several spaces
    "spaces.apart": Rule("reference; decision 2", "Spaces of one gateway share its port and nothing else."),
    # Bounds and records
    "limit.size": Rule("decision 29", "A message above the limit closes its sender alone, with 1009."),
    "limit.depth": Rule("decision 29", "Nesting above the limit is refused."),
    "limit.rate": Rule("decision 29", "Above its rate a participant is told rate_limited and nobody else is delayed."),
    "limit.members": Rule("decision 29", "A full space turns the next away with 4429."),
    "limit.streams": Rule("decision 29", "Above its number of streams an owner is refused."),
    "limit.body": Rule("decision 29", "An HTTP body above the limit is refused with 413 and JSON."),
    "limit.name": Rule(
        "decision 29", "Kinds, ids and names above the limit are refused, and what they may be is said."
    ),
    "limit.sockets": Rule("decision 29", "Above its number of sockets a person is turned away with 4429."),
    "limit.grants": Rule("decision 29", "Nobody is granted more patterns than the limit."),
    "limit.kept": Rule("decision 29", "What is kept for late joiners is bounded in size, and refused above it."),
    "limit.join": Rule("decision 29", "How long a socket may take to join is bounded."),
    "limit.ping": Rule("decision 29", "A socket that answers no ping is closed with 1011."),
    "limit.slow": Rule("decision 29", "Who does not read is told slow_consumer, closed, and delays nobody."),
    "limit.history": Rule("decision 29", "The history is bounded, and a reader whose place is gone is told so."),
    "log.envelopes": Rule("reference", "What is received, delivered and rejected is logged in the reference's form."),
    "log.decisions": Rule("reference; spec 3.6.8", "So is what was allowed and why, and every change of permissions."),
}

Test = TypeVar("Test", bound=Callable[..., object])


def rule(*ids: str) -> Callable[[Test], Test]:
    """Mark a test with the rules that it holds. Raises `KeyError` for an id that is none."""
    for one in ids:
        RULES[one]
    return lambda test: test
