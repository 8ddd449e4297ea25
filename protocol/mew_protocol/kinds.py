"""[pure] The kinds of the wire. A kind is the meaning of an envelope; `payloads` defines its content."""

from typing import Final

SYSTEM_JOIN: Final = "system/join"
SYSTEM_WELCOME: Final = "system/welcome"
SYSTEM_PRESENCE: Final = "system/presence"
SYSTEM_PRESENCE_BATCH: Final = "system/presence-batch"
SYSTEM_ERROR: Final = "system/error"
SYSTEM_RECEIPT: Final = "system/receipt"
SYSTEM_HEARTBEAT: Final = "system/heartbeat"
SYSTEM_REGISTER: Final = "system/register"

MCP_REQUEST: Final = "mcp/request"
MCP_RESPONSE: Final = "mcp/response"
MCP_PROPOSAL: Final = "mcp/proposal"
MCP_WITHDRAW: Final = "mcp/withdraw"
MCP_REJECT: Final = "mcp/reject"
MCP_NOTIFICATION: Final = "mcp/notification"

CAPABILITY_GRANT: Final = "capability/grant"
CAPABILITY_REVOKE: Final = "capability/revoke"
CAPABILITY_GRANT_ACK: Final = "capability/grant-ack"
CAPABILITY_ENDED: Final = "capability/ended"

SPACE_INVITE: Final = "space/invite"
SPACE_INVITE_ACK: Final = "space/invite-ack"
SPACE_KICK: Final = "space/kick"

CHAT: Final = "chat"
CHAT_ACKNOWLEDGE: Final = "chat/acknowledge"
CHAT_CANCEL: Final = "chat/cancel"

REASONING_START: Final = "reasoning/start"
REASONING_THOUGHT: Final = "reasoning/thought"
REASONING_CONCLUSION: Final = "reasoning/conclusion"
REASONING_CANCEL: Final = "reasoning/cancel"

PARTICIPANT_PAUSE: Final = "participant/pause"
PARTICIPANT_RESUME: Final = "participant/resume"
PARTICIPANT_REQUEST_STATUS: Final = "participant/request-status"
PARTICIPANT_STATUS: Final = "participant/status"
PARTICIPANT_FORGET: Final = "participant/forget"
PARTICIPANT_COMPACT: Final = "participant/compact"
PARTICIPANT_COMPACT_DONE: Final = "participant/compact-done"
PARTICIPANT_CLEAR: Final = "participant/clear"
PARTICIPANT_PIN: Final = "participant/pin"
PARTICIPANT_UNPIN: Final = "participant/unpin"
PARTICIPANT_REQUEST_HISTORY: Final = "participant/request-history"
PARTICIPANT_HISTORY: Final = "participant/history"
PARTICIPANT_UNDO: Final = "participant/undo"
PARTICIPANT_UNDO_DONE: Final = "participant/undo-done"
PARTICIPANT_RECALL: Final = "participant/recall"
PARTICIPANT_RECALL_DONE: Final = "participant/recall-done"
PARTICIPANT_REQUEST_RECEIPTS: Final = "participant/request-receipts"
PARTICIPANT_RECEIPTS: Final = "participant/receipts"
PARTICIPANT_RESTART: Final = "participant/restart"
PARTICIPANT_SHUTDOWN: Final = "participant/shutdown"

STREAM_REQUEST: Final = "stream/request"
STREAM_OPEN: Final = "stream/open"
STREAM_CLOSE: Final = "stream/close"
STREAM_GRANT_WRITE: Final = "stream/grant-write"
STREAM_REVOKE_WRITE: Final = "stream/revoke-write"
STREAM_TRANSFER_OWNERSHIP: Final = "stream/transfer-ownership"
STREAM_WRITE_GRANTED: Final = "stream/write-granted"
STREAM_WRITE_REVOKED: Final = "stream/write-revoked"
STREAM_OWNERSHIP_TRANSFERRED: Final = "stream/ownership-transferred"

PROGRAM_LOG: Final = "program/log"
PROGRAM_RESTART: Final = "program/restart"
PROGRAM_ADD: Final = "program/add"
"""The kinds that a capability names to permit a request over HTTP. No envelope has them."""

KNOWN: Final = tuple(value for name, value in dict(globals()).items() if name.isupper() and isinstance(value, str))
"""All kinds above. Programs may send kinds of their own."""

ALLOWED_WHILE_PAUSED: Final = frozenset(
    {
        PARTICIPANT_STATUS,
        PARTICIPANT_RESUME,
        PARTICIPANT_REQUEST_STATUS,
        PARTICIPANT_CLEAR,
        PARTICIPANT_FORGET,
        PARTICIPANT_COMPACT_DONE,
        PARTICIPANT_HISTORY,
        PARTICIPANT_UNDO_DONE,
        PARTICIPANT_RECALL_DONE,
        PARTICIPANT_RECEIPTS,
        PARTICIPANT_SHUTDOWN,
        CHAT_ACKNOWLEDGE,
        CHAT_CANCEL,
        REASONING_CANCEL,
        STREAM_CLOSE,
        MCP_RESPONSE,
        CAPABILITY_GRANT_ACK,
        SYSTEM_HEARTBEAT,
    }
)
"""The kinds that a paused participant may still send: acknowledgements, cancellations, endings and heartbeats, and
responses, so that no caller waits until its timeout."""
