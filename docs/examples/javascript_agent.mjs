// An agent in JavaScript that uses no code of mew-agent: `mew run --participant helper node javascript_agent.mjs`.
// It reports its provider's usage and drops all but the last exchange when it is asked to compact. Node 22 or newer.
const { MEW_GATEWAY, MEW_SPACE, MEW_PARTICIPANT_ID: ME, MEW_TOKEN } = process.env;
const { OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL } = process.env;
const WINDOW = 8192;

const messages = [];
let tokens; // absent while the size is unknown
let report = { basis: "unknown", reason: "no_call_yet" };
let compaction; // the last one
let work = Promise.resolve(); // chats and compactions run one at a time

const socket = new WebSocket(MEW_GATEWAY);

function send(kind, payload, about) {
  const address = about && { to: [about.from], correlation_id: [about.id] };
  socket.send(JSON.stringify({ kind, payload, ...address })); // the gateway adds id, ts and from
}

function status(word) {
  const context = { ...report, max_tokens_basis: "configured", last_compaction: compaction };
  return { status: word, messages_in_context: messages.length, tokens, max_tokens: WINDOW, context };
}

async function answer(chat) {
  const asked = [...messages, { role: "user", content: chat.payload.text }];
  const response = await fetch(`${OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${OPENAI_API_KEY}` },
    body: JSON.stringify({ model: OPENAI_MODEL, messages: asked }),
  });
  if (!response.ok) return send("chat", { text: `I cannot answer: the model said ${response.status}.` }, chat);
  const { choices, usage, model } = await response.json();
  messages.splice(0, Infinity, ...asked, choices[0].message);
  tokens = usage?.total_tokens;
  const { prompt_tokens, completion_tokens } = usage ?? {};
  const measured_at = new Date().toISOString();
  report = usage
    ? { basis: "reported", prompt_tokens, completion_tokens, measured_at, model }
    : { basis: "unknown", reason: "usage_unavailable", model };
  if (usage && compaction?.tokens_before && compaction.tokens_after === undefined) {
    const freed_tokens = Math.max(0, compaction.tokens_before - tokens);
    compaction = { ...compaction, tokens_after: tokens, freed_tokens };
  }
  send("participant/status", status("active"));
  send("chat", { text: choices[0].message.content }, chat);
}

function compact(request) {
  if (messages.length <= 2) {
    return send("participant/compact-done", { status: "skipped", skipped: true, reason: "no_history" }, request);
  }
  const done = { tokens_before: tokens, freed_messages: messages.splice(0, messages.length - 2).length };
  compaction = { ...done, at: new Date().toISOString(), trigger: "requested", basis: "projected" };
  const { measured_at } = report;
  const last_reported = tokens === undefined ? report.last_reported : { tokens, measured_at };
  tokens = undefined; // until the next answer
  report = { basis: "unknown", reason: "compacted", last_reported };
  send("participant/compact-done", { status: "compacted", ...done }, request);
  send("participant/status", status("compacted"));
}

socket.onopen = () =>
  socket.send(JSON.stringify({ type: "join", space: MEW_SPACE, participantId: ME, token: MEW_TOKEN }));
socket.onclose = ({ code, reason }) => {
  console.error(`disconnected: ${code} ${reason}`);
  process.exit(1);
};
socket.onmessage = ({ data }) => {
  if (data[0] !== "{") return; // a frame of a stream
  const envelope = JSON.parse(data);
  const { kind, from, to, correlation_id } = envelope;
  if (from === ME || !to?.includes(ME)) return; // everyone receives everything
  if (kind === "system/welcome") send("participant/status", status("active"));
  if (kind === "participant/request-status") send("participant/status", status("active"), envelope);
  if (/^participant\/(forget|clear|restart)$/.test(kind)) {
    send("participant/status", status("refused:not_supported"), envelope);
  }
  const task = { chat: correlation_id?.length ? undefined : answer, "participant/compact": compact }[kind];
  if (task) work = work.then(() => task(envelope)).catch((error) => console.error(error));
};
