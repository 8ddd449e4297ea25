"""Scripts that tests run in the page."""

NOTIFICATIONS = """() => {
    window.notes = [];
    window.Notification = class {
        static permission = "granted";
        static requestPermission = async () => "granted";
        constructor(title, { body }) { window.notes.push({ title, body }); }
    };
    document.hasFocus = () => false;
}"""
"""Replaces the browser's notifications, which a headless one cannot show, by a list."""

FILLS = """() => {
    const channel = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    const probe = document.body.appendChild(document.createElement("i"));
    const luminance = (name) => {
        probe.style.color = `var(--${name})`;
        const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number).map(channel);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (one, other) => {
        const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
        return (high + 0.05) / (low + 0.05);
    };
    const fills = ["fine", "notice", "warning", "blocking", "unknown"].map((name) => [name, "sunken"]);
    const parts = ["prefix", "summary", "pins", "messages", "tool_results", "reply", "unsent", "used", "other"];
    const onSurface = [...parts.map((name) => `part-${name}`), "edge", "ink"].map((name) => [name, "surface"]);
    const pairs = [...fills, ...onSurface];
    for (let index = 0; index < 6; index += 1) pairs.push([`series-${index}`, "surface"]);
    const weak = pairs.filter((pair) => ratio(...pair) < 3).map((pair) => `${pair} ${ratio(...pair)}`);
    probe.remove();
    return weak;
}"""
"""Finds fills with a meaning whose contrast to what they touch is below 3:1."""

CONTRAST = """() => {
    const luminance = (rgb) => {
        const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const ground = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour.slice(0, 3);
        }
        return [255, 255, 255];
    };
    const faint = [];
    for (const node of document.querySelectorAll("body *")) {
        const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
        if (!hasText || !node.checkVisibility()) continue;
        const colour = parse(getComputedStyle(node).color).slice(0, 3);
        const [high, low] = [colour, ground(node)].map(luminance).sort((a, b) => b - a);
        const ratio = (high + 0.05) / (low + 0.05);
        if (ratio < 4.5) faint.push(`${node.textContent.trim()}: ${ratio.toFixed(2)}`);
    }
    return faint;
}"""
"""Finds text whose contrast is below 4.5:1."""

ODD_ENVELOPES = """async () => {
    const { Conversation } = await import("/dashboard/conversation.js");
    const { ConversationView } = await import("/dashboard/conversation_view.js");
    const conversation = new Conversation();
    const [list, empty, newest] = ["div", "p", "button"].map((tag) => document.createElement(tag));
    const may = { mayDecide: () => true, mayApprove: () => true };
    const view = new ConversationView({ list, empty, newest }, conversation, { me: "ada", ...may });
    const kinds = ["chat", "chat/acknowledge", "chat/cancel", "reasoning/start", "reasoning/thought",
        "reasoning/conclusion", "reasoning/cancel", "mcp/request", "mcp/response", "mcp/proposal", "mcp/reject",
        "mcp/withdraw", "system/presence", "capability/grant", "capability/revoke", "space/kick", "participant/compact",
        "participant/compact-done",
        "participant/undo", "participant/undo-done", "participant/pin", "participant/forget", "participant/pause",
        "participant/status", "unknown/kind"];
    const odd = [null, undefined, 5, "text", [], [null], {}, true];
    const keys = ["text", "message", "reasoning", "action", "actionInput", "method", "params", "result", "error",
        "status", "reason", "participant", "event", "recipient", "target_tokens", "entries", "context", "tokens",
        "messages_in_context"];
    const good = { text: "x", message: "x", action: "tool", actionInput: { tool: "t", arguments: {} },
        method: "tools/call", params: { name: "n", arguments: { old: "a", new: "b" } }, messages_in_context: 1,
        event: "join", participant: { id: "p" } };
    const payloads = [...odd, good, ...keys.flatMap((key) => odd.map((value) => ({ ...good, [key]: value })))];
    let count = 0;
    for (const kind of kinds) {
        const known = ["chat", "reasoning/start", "mcp/proposal", "mcp/request", "participant/compact"];
        for (const one of known) {
            conversation.receive({ id: `${one} ${kind}`, ts: "", from: "p", kind: one, payload: good, to: ["p"] });
        }
        for (const payload of payloads) {
            for (const about of [undefined, 5, `e${count - 1}`, ...known.map((one) => [`${one} ${kind}`])]) {
                const [ts, to] = [count % 3 ? "2026-01-01T10:00:00Z" : null, count % 2 ? ["q"] : null];
                const headers = { correlation_id: about, to, context: `reasoning/start ${kind}` };
                const envelope = { id: `e${count}`, ts, from: "p", kind, payload, ...headers };
                conversation.receive(envelope);
                count += 1;
            }
        }
        view.draw(performance.now());
    }
    if (list.textContent.includes("cannot be shown")) throw new Error("an entry cannot be shown");
    return count;
}"""
"""Applies envelopes with odd payloads to the conversation, draws them, and counts them."""

COUNTED_BEHIND = """async () => {
  const { EventFeed } = await import("/dashboard/events.js");
  const follow = async (count) => {
    const shown = [];
    const lines = Array.from({ length: count }, (_, index) => `id: e-${index + 1}\\nevent: envelope\\ndata: {}\\n\\n`);
    const body = lines.join("");
    const real = window.fetch;
    const feed = new EventFeed("http://gateway/events", "t", {
      onEvent: () => undefined,
      onState: (_state, { behind } = {}) => behind && shown.push(`${behind.done} of ${behind.total}`),
    });
    feed._lastId = "e-0";
    window.fetch = async () => new Response(body, { headers: { "mew-position": `e-${count}` } });
    await feed._readOnce();
    window.fetch = real;
    return shown.length ? [shown[0], shown.at(-1)] : [];
  };
  return [await follow(300), await follow(12)];
}"""
"""What a reader says of how far it is: the first and the last words, after 300 missed events and after 12."""

FRESH = """() => ({
    root: document.documentElement.cloneNode(true),
    globals: [window, document].map((one) => Object.getOwnPropertyNames(one)),
})"""
"""What a page is before anybody signs in, for `RESTORE`."""

RESTORE = """(fresh) => {
    const isElement = (node) => node.nodeType === Node.ELEMENT_NODE;
    const isSame = (node, other) => node.nodeName === other.nodeName && node.id === other.id;
    const restore = (node, wanted) => {
        if (!isElement(node)) return void (node.data = wanted.data);
        for (const { name } of [...node.attributes]) if (!wanted.hasAttribute(name)) node.removeAttribute(name);
        for (const { name, value } of wanted.attributes) {
            if (node.getAttribute(name) !== value) node.setAttribute(name, value);
        }
        const [nodes, all] = [[...node.childNodes], [...wanted.childNodes]];
        if (nodes.length === all.length && nodes.every((one, index) => isSame(one, all[index]))) {
            nodes.forEach((one, index) => restore(one, all[index]));
        } else {
            if (wanted.querySelector("[id]")) throw new Error(`#${wanted.id} has lost or got an element`);
            node.replaceChildren(...all.map((one) => one.cloneNode(true)));
        }
        if (node.matches("[type=checkbox]")) node.checked = wanted.checked;
        else if (node.matches("input, textarea, select")) node.value = wanted.value;
    };
    for (const node of document.querySelectorAll("main *")) if (node.scrollTop) node.scrollTop = 0;
    for (const node of document.querySelectorAll("dialog[open]")) node.close();
    const leave = document.getElementById("leave");
    if (!leave.hidden) leave.click();
    localStorage.clear();
    sessionStorage.clear();
    history.replaceState(null, "", location.pathname);
    const globals = [window, document].map((one) => Object.getOwnPropertyNames(one));
    if (String(globals) !== String(fresh.globals)) throw new Error("a test has left a global");
    restore(document.documentElement, fresh.root);
}"""
"""Signs out and makes the page as it was when it was loaded; throws where only loading it again does."""

VIOLATIONS = """async (options) => {
    const { violations } = await axe.run(document, options);
    return violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)]);
}"""
"""The rules of accessibility that the page breaks, by axe, with the nodes that do."""
