"""The rules of a MEW v0.4 gateway, by id. Each rule has tests in this folder, and each test has rules.

`source` says where a rule comes from: `spec` and a section of the specification, `reference` for behaviour of the
TypeScript gateway that its clients rely on, or `decision` and its number in docs/reference/wire.md.
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
    # Joining
    "join.frame": Rule("reference", "A join frame as the first message is answered with a welcome."),
    "join.envelope": Rule("reference; decision 1", "A system/join envelope joins too, with its keys in any form."),
    "join.header": Rule(
        "spec 5.1; decision 1", "A bearer header alone joins too; a later join frame repeats the welcome."
    ),
    "join.any-path": Rule("reference; decision 10", "WebSocket is served on every path, with or without a query."),
    "join.pipelined": Rule("reference", "Messages sent right after the join frame are handled, in order."),
    "join.token": Rule("spec 4.3; decision 2", "An unknown or foreign token gets unauthorized and close code 4401."),
    "join.space": Rule("decision 2", "An unknown space gets space_not_found and close code 4404."),
    "join.first": Rule("decision 22", "A message before the join gets not_joined."),
    "join.timeout": Rule("decision 1", "A socket that does not join in time gets an error and is closed."),
    "join.superseded": Rule(
        "decision 2",
        "A new socket of an agent supersedes the older one, which stays open and gets an error and nothing more.",
    ),
    "join.people": Rule("decision 2", "A person may hold several sockets at once."),
    # Welcome and presence
    "welcome.contents": Rule(
        "spec 3.8.1", "A welcome holds the joiner, its capabilities, the other members and the open streams."
    ),
    "welcome.unicast": Rule("spec 3.8.1", "Only the joiner gets the welcome."),
    "welcome.baseline": Rule("decision 27", "mcp/response is always among the advertised capabilities."),
    "welcome.star": Rule(
        "decision 20", "A pattern of kind * is advertised with one of kind **, which the TypeScript SDK needs."
    ),
    "presence.join-leave": Rule(
        "spec 3.7", "Other members get a presence when a participant joins, with its capabilities, and when it leaves."
    ),
    # The envelope
    "envelope.filled": Rule("reference", "protocol, id, ts and from are filled in if missing or null."),
    "envelope.kept": Rule("spec 3", "What the sender wrote arrives unchanged, unknown keys included."),
    "envelope.from": Rule("spec 4.3; decision 3", "A from of another participant gets identity_mismatch."),
    "envelope.version": Rule(
        "spec 6; decision 6", "v0.3 and v0.4 are passed on as written; other versions are refused."
    ),
    "envelope.lists": Rule("spec 3; decision 7", "A bare string in to or correlation_id becomes a list."),
    "envelope.compact": Rule("reference; decision 28", "JSON is compact, in UTF-8 and without NaN."),
    "envelope.kind": Rule("spec 3", "An envelope without kind is refused."),
    # Routing
    "routing.everybody": Rule(
        "spec 5.4; decision 5", "Every envelope reaches every member, its sender included, whatever to says."
    ),
    "routing.order": Rule(
        "spec 10.1; decision 13",
        "All members see one order, with the frames and envelopes of one sender in the order sent.",
    ),
    "routing.system": Rule(
        "spec 4.1; decision 4", "system/* from participants is refused; system/register has an error of its own."
    ),
    "routing.heartbeat": Rule("reference; decision 4", "A heartbeat needs no capability and is not delivered."),
    "routing.chat-text": Rule("spec 3.4", "A chat without text is refused."),
    "routing.mcp-method": Rule("spec 3.1.1", "An mcp/request without method is refused."),
    # Errors
    "error.full": Rule(
        "spec 3.8.2; decision 22",
        "An error is a complete envelope to the sender alone, and names the refused envelope.",
    ),
    "error.violation": Rule(
        "spec 3.8.2", "A capability violation lists the attempted kind and the sender's capabilities."
    ),
    "error.garbage": Rule("decision 22", "An unreadable message gets one error and has no other effect."),
    # Capabilities
    "capability.payload": Rule("spec 4.1; decision 20", "Payload patterns match at any depth, with globs and lists."),
    "capability.to": Rule("spec 4.1; decision 20", "to in a capability must cover every addressee."),
    "capability.grant": Rule(
        "spec 3.6.1", "A grant takes effect at once; its recipient gets a welcome before others see the grant."
    ),
    "capability.cumulative": Rule("reference", "Grants accumulate."),
    "capability.own": Rule("spec 3.6.8; decision 9", "A participant grants only what it holds."),
    "capability.recipient": Rule(
        "spec 3.6.4; decision 9", "A recipient is named by id or display name; an unknown one is an error."
    ),
    "capability.revoke": Rule("spec 3.6.2; decision 9", "A revocation by grant id or by pattern takes effect at once."),
    "capability.ack": Rule("spec 3.6.3", "A grant-ack is sent by the recipient and reaches every member."),
    "capability.end": Rule("reference", "Grants end some time after their recipient left."),
    # Proposals
    "proposal.fulfil": Rule(
        "spec 3.2.1", "A proposal, its request and its response are passed on with their correlation ids."
    ),
    "proposal.withdraw": Rule("spec 3.3.1", "Only the proposer withdraws a proposal."),
    "proposal.reject": Rule(
        "spec 3.3.2", "A rejection names its proposal; any participant with the capability may send one."
    ),
    # Space management
    "space.invite": Rule(
        "spec 3.6.5", "An invitation adds a participant with a token that stays valid after it leaves."
    ),
    "space.invite-ack": Rule("spec 3.6.6; decision 10", "Only the inviter gets the token; others get a presence."),
    "space.invite-again": Rule("reference", "An invitation of an existing participant gets already_exists."),
    "space.invite-name": Rule("reference", "An id that could leave its folder is refused."),
    "space.kick": Rule(
        "spec 3.6.7; decision 8", "A removed participant gets the kick, is closed with 4403 and cannot join again."
    ),
    # Participant control
    "control.pause": Rule("spec 3.9.1; decision 19", "A paused participant may send acknowledgements only."),
    "control.resume": Rule("spec 3.9.2", "A resume from another participant or the end of the timeout ends a pause."),
    "control.shutdown": Rule("spec 3.9.10", "After a shutdown a participant is refused until it joins again."),
    "control.pause-told": Rule(
        "decision 19", "A participant that joins while paused gets the pause with the remaining time."
    ),
    "control.board": Rule("reference", "Late joiners get the last status of every participant."),
    # Streams
    "stream.open": Rule(
        "spec 3.10.2", "A request opens a stream, and every member sees the opening before the request."
    ),
    "stream.frames": Rule("spec 3.10.3; decision 13", "Frames reach every member unchanged, their writer included."),
    "stream.targets": Rule("reference", "With targets, frames reach only these; an absent target is refused."),
    "stream.unauthorized": Rule("spec 3.10.5", "A frame from a participant that may not write is refused."),
    "stream.grant": Rule(
        "spec 3.10.5; decision 12", "The owner grants and revokes writing; every member gets the result."
    ),
    "stream.transfer": Rule("spec 3.10.7", "The owner may transfer a stream, and can then no longer write."),
    "stream.owner-only": Rule(
        "spec 3.10.5; decision 12", "Only the owner changes rights, and only in favour of members."
    ),
    "stream.close": Rule("spec 3.10.4; decision 11", "Only owner and writers close a stream, by any of its ids."),
    "stream.late": Rule(
        "spec 3.10.8", "Late joiners get open streams with their metadata; a request cannot forge the gateway's keys."
    ),
    "stream.relayed": Rule(
        "reference", "A participant's own stream/open and a close of an unknown stream are passed on."
    ),
    "stream.owner-gone": Rule("decision 14", "The streams of an owner that stays away are closed."),
    # HTTP
    "http.health": Rule("reference", "The health check needs no token and counts spaces and clients."),
    "http.participants": Rule("reference", "The participants route lists all participants and who is connected."),
    "http.post": Rule("spec 5.3", "An envelope over HTTP follows the same rules as one from a socket."),
    "http.refusals": Rule("spec 5.3; decision 29", "Refusals have fitting statuses and JSON bodies."),
    "http.answers": Rule("reference", "Answers about streams, invitations and rights say what was changed."),
    "http.poll": Rule("spec 5.3; decision 23", "Envelopes after a position can be polled."),
    "http.virtual": Rule(
        "reference",
        "The output_log of a participant receives what a member receives, from its first message over HTTP on.",
    ),
    "http.events": Rule(
        "decision 23", "Server-sent events send the board, then envelopes, and resume after the last one seen."
    ),
    # Several spaces
    "spaces.apart": Rule("reference; decision 2", "Spaces of one gateway share its port and nothing else."),
    # Limits and logs
    "limit.size": Rule("decision 29", "A message above the limit closes the socket of its sender, with 1009."),
    "limit.depth": Rule("decision 29", "Nesting above the limit is refused."),
    "limit.rate": Rule("decision 29", "Above its rate a participant gets rate_limited; others are not delayed."),
    "limit.members": Rule("decision 29", "A full space rejects further members with 4429."),
    "limit.streams": Rule("decision 29", "Above its number of streams an owner is refused."),
    "limit.body": Rule("decision 29", "An HTTP body above the limit is refused with 413 and JSON."),
    "limit.name": Rule(
        "decision 29", "Kinds, ids and names above the limit are refused with an error that names the limit."
    ),
    "limit.sockets": Rule("decision 29", "Above its number of sockets a person is rejected with 4429."),
    "limit.grants": Rule("decision 29", "A grant above the limit of patterns is refused."),
    "limit.kept": Rule("decision 29", "An envelope that late joiners would get is refused above its limit."),
    "limit.join": Rule("decision 29", "The time in which a socket must join is bounded."),
    "limit.ping": Rule("decision 29", "A socket that answers no ping is closed with 1011."),
    "limit.slow": Rule("decision 29", "A member that does not read gets slow_consumer, is closed, and delays nobody."),
    "limit.history": Rule("decision 29", "The history is bounded; a reader whose position is gone is told so."),
    "log.envelopes": Rule(
        "reference", "Received, delivered and rejected envelopes are logged in the form of the TypeScript gateway."
    ),
    "log.decisions": Rule(
        "reference; spec 3.6.8", "Capability decisions and changes of permissions are logged with their reasons."
    ),
}

Test = TypeVar("Test", bound=Callable[..., object])


def rule(*ids: str) -> Callable[[Test], Test]:
    """Mark a test with the rules that it checks. Raises `KeyError` for an unknown id."""
    for one in ids:
        RULES[one]
    return lambda test: test
